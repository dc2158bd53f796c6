"""The README says what is true: its table of keys, its links, its commands."""

from __future__ import annotations

import re

import pytest

from hpc_es.config import load, table
from hpc_es.tuning import plan
from hpc_es.tuning.check import check
from tests.harness import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_keys_is_that_of_the_code() -> None:
    found = README.split("<!-- options -->\n")[1].split("<!-- /options -->")[0]
    assert found == table(), "replace it by the output of `hpc-es options`"


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
TUNINGS = [path for path in CONFIGS if path.name.startswith("tune_")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_short_and_headed(config) -> None:
    text = config.read_text(encoding="utf-8")
    if config in TUNINGS:
        check(plan.load(config), ranks=1)
    else:
        assert load(config).name == config.stem
    assert len(text.splitlines()) <= 25
    assert text.startswith("# ")
    assert "# Run: " in text
    assert "# Expect: " in text
