"""README and docs/ agree with the code: links, commands, configs, keys and files."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_es import cli
from hpc_es.api import job as training
from hpc_es.cluster.site import Site
from hpc_es.config import validation
from hpc_es.config.loading import load, table, validate
from hpc_es.tuning import plan
from hpc_es.tuning.plan import check
from tests.helpers.documents import DOCS, PAGES, README, SITE, anchors, blocks, hooks, links, named
from tests.helpers.harness import ROOT

BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=named)
KEYS = re.findall(r"^\| `([\w.]+)`", table(), re.MULTILINE)
SECTIONS = (
    "task",
    "policy",
    "algorithm",
    "noise",
    "mpi",
    "evaluation",
    "checkpoint",
    "stop",
    "report",
)
LEAST: Mapping[str, Any] = {"task": {"env_id": "CartPole-v1"}, "stop": {"generations": 1}}


class Unfit(Exception):
    """A command line of a page that its parser does not take."""


@BY_PAGE
def test_every_link_has_a_target(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = set(re.findall(r"[\w/]+\.md", text.partition("\nnav:\n")[2]))
    assert nav == {page.relative_to(DOCS).as_posix() for page in SITE}


def test_scripts_styles_and_fonts_of_the_site_are_bundled() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assets = re.findall(
        r"assets/[\w./]+",
        "".join(re.findall(r"^extra_(?:css|javascript): .*$", text, re.MULTILINE)),
    )
    assert assets
    for asset in assets:
        content = (DOCS / asset).read_text(encoding="utf-8")
        for file in re.findall(r"url\(([^)]+)\)", content) if asset.endswith(".css") else []:
            assert ((DOCS / asset).parent / file).is_file(), file


@BY_PAGE
def test_every_named_file_exists(page: Path) -> None:
    folders = "benchmarks|configs|examples|hpc_es|slurm|tests"
    named_files = re.findall(
        rf"(?<![/:\w])(?:{folders})/[\w./-]*\w", page.read_text(encoding="utf-8")
    )
    created = {"benchmarks/results"}  # by `make bench`
    assert [
        file for file in named_files if file not in created and not (ROOT / file).exists()
    ] == []


@BY_PAGE
def test_every_named_key_exists(page: Path) -> None:
    dotted = re.findall(
        rf"`((?:{'|'.join(SECTIONS)})\.[a-z_.]+)\b[^`]*`", page.read_text(encoding="utf-8")
    )
    known = {
        ".".join(key.split(".")[:length]) for key in KEYS for length in range(2, key.count(".") + 2)
    }
    others = ("task.py", "policy.py", "policy.keras", "policy.make_env")
    assert [key for key in dotted if key.rstrip(".") not in known and key not in others] == []


def commands(text: str) -> list[str]:
    """The command lines of a page: in code blocks, indented, and in the tables of commands."""
    fenced = [line for block in blocks(text, "sh") for line in block.splitlines()]
    indented = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    inline = re.findall(r"`((?:hpc-es|mpiexec|python -m hpc_es)[^`]*)`", text)
    result = [re.sub(r"\s+#.*", "", line) for line in (*fenced, *indented, *inline)]
    return [line for line in result if re.search(r"\bhpc-es [a-z]|-m hpc_es(\.main)? ", line)]


# Commands of packages in examples/ and docs/extending, which tests of jobs install and run.
OF_EXAMPLES = ("thomson-table", "final-deviation")


def parsed(line: str) -> argparse.Namespace | None:
    """The result of parsing a command line, or None for a pattern such as [--output DIR]."""
    words = shlex.split(line)
    if words[-2:-1] == ["-c"] and "python" in words[-1]:  # of a shell that a launcher starts
        words = shlex.split(words[-1])
    if "[" in line or words[-1:] == ["COMMAND"] or "..." in words:
        return None
    if "hpc_es.main" in words:
        return _parsed(training.parser(), words[words.index("hpc_es.main") + 1 :])
    start = words.index("hpc-es" if "hpc-es" in words else "hpc_es") + 1
    name = words[start]
    if name in OF_EXAMPLES:
        return None
    assert name in cli.names(), line
    arguments = words[start + 1 :]
    return _parsed(cli.command_parser(name), arguments) if arguments or name == "options" else None


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_intermixed_args(words)
    except SystemExit as error:
        raise Unfit(f"{words}: {said.getvalue()}") from error


@BY_PAGE
def test_every_named_command_exists(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        options = parsed(line)
        config = str(getattr(options, "config", ""))
        if config.startswith(("configs/", "examples/")) and not Path(config).name.startswith(
            "tune_"
        ):
            load(ROOT / config, [item for item in getattr(options, "overrides", []) if "=" in item])


def test_wrong_command_is_detected() -> None:
    with pytest.raises(Unfit, match="--epsiodes"):
        parsed("hpc-es eval runs/x --epsiodes 3")


def test_readme_lists_every_command() -> None:
    listed = set(re.findall(r"`hpc-es ([a-z-]+)", README.read_text(encoding="utf-8")))
    assert listed >= set(cli.names())


@BY_PAGE
def test_every_config_in_a_page_is_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "me")  # of /scratch/$USER
    site_keys = {field.name for field in dataclasses.fields(Site)}
    for number, text in enumerate(blocks(page.read_text(encoding="utf-8"), "yaml")):
        data = yaml.safe_load(text)
        if data.keys() <= site_keys:
            validation.validate(Site, data)
        elif "base" in data:
            (tmp_path / f"{number}.yaml").write_text(
                text.replace("base: ", f"base: {ROOT / 'configs'}/")
            )
            check(plan.load(tmp_path / f"{number}.yaml"), ranks=1)
        else:
            validate({**LEAST, **data})


@BY_PAGE
def test_every_program_in_a_page_compiles(page: Path) -> None:
    for text in blocks(page.read_text(encoding="utf-8"), "python"):
        assert not text.startswith("--8"), (
            "a file to be taken in, as a formatter of Python has changed it"
        )
        compile(text, str(page), "exec")


def test_key_page_has_every_key() -> None:
    generated = hooks()
    page = generated.on_page_markdown((DOCS / "reference" / "keys.md").read_text(encoding="utf-8"))
    assert sorted(re.findall(r"^\| `([\w.]+)`", page, re.MULTILINE)) == sorted(KEYS)


@BY_PAGE
def test_every_generated_table_has_content(page: Path) -> None:
    text = hooks().on_page_markdown(
        page.read_text(encoding="utf-8").replace("<!-- help: all -->", "")
    )
    assert re.findall(r"^<!-- (?:keys|help|state|example|file)", text, re.MULTILINE) == []


def test_table_of_one_kind_has_its_keys_only() -> None:
    keys = re.findall(r"`task\.([\w.]+)`", hooks().keys("task bandits"))
    assert "distribution" in keys
    assert "episodes_per_job" in keys
    assert "env_id" not in keys
    with pytest.raises(ValueError, match="no config keys"):
        hooks().keys("tusk")


def test_markdown_characters_are_escaped() -> None:
    output = hooks().keys("all")
    assert "runs/&lt;name>" in output
    assert "such as &#123;num_arms: 5&#125;" in output
    assert "`{}`" in output  # in code they are safe
