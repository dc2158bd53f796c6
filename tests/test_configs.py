"""Every config of the repository is valid, short, and headed by its command and what to expect."""

from __future__ import annotations

import pytest

from hpc_es import cli
from hpc_es.config import moved
from hpc_es.config.loading import load
from tests.helpers.harness import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TUNINGS = [path for path in CONFIGS if path.name.startswith("tune_")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_short_headed_and_has_todays_keys(config, monkeypatch) -> None:
    monkeypatch.setattr(moved, "tell", pytest.fail)  # of a key at an old place
    text = config.read_text(encoding="utf-8")
    if config in TUNINGS:
        assert cli.run(["check", str(config), "--ranks", "1"]) == 0
    else:
        assert load(config).name == config.stem
    assert len(text.splitlines()) <= 25
    assert text.startswith("# ")
    assert "# Run: " in text
    assert "# Expect: " in text
