"""Every config of the repository is valid and short;
its header states the command and the expected result.
"""

from __future__ import annotations

import pytest

from hpc_es import cli
from hpc_es.config.loading import load
from tests.helpers.harness import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TUNINGS = [path for path in CONFIGS if path.name.startswith("tune_")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_short_and_has_a_header(config) -> None:
    text = config.read_text(encoding="utf-8")
    if config in TUNINGS:
        assert cli.run(["check", str(config), "--ranks", "1"]) == 0
    else:
        assert load(config).name == config.stem
    assert len(text.splitlines()) <= 25
    assert text.startswith("# ")
    assert "# Run: " in text
    assert "# Expect: " in text
