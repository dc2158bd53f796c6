"""All code of docs/extending runs: Python and YAML blocks are files of one directory,
whose configs are run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.helpers.documents import named
from tests.helpers.harness import ROOT, mpiexec, python
from tests.helpers.runs import digest, newest

PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=named)
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHORT = (
    "stop.generations=2",
    "report.plot_interval_seconds=0",
    "evaluation.interval=0",
    "checkpoint.interval=1",
)


def files(page: Path) -> dict[str, str]:
    """The files of a page by name: every block of Python or YAML."""
    result: dict[str, str] = {}
    for language, name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        assert language in {"python", "yaml", "sh"}, f"{named(page)} has a block of {language!r}"
        if language == "sh":
            continue
        assert name, f"{named(page)} has a block without a title: it would not be run\n{text}"
        assert name not in result, name
        assert name.endswith({"python": ".py", "yaml": ".yaml"}[language]), name
        result[name] = text
    return result


def write(page: Path, folder: Path) -> list[str]:
    """Write the files of a page; return the configs."""
    output = files(page)
    for name, text in output.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.parent != folder:
            (path.parent / "__init__.py").touch()
    return [name for name in output if name.endswith(".yaml")]


CONFIGS = [(page, name) for page in PAGES for name in files(page) if name.endswith(".yaml")]
BY_CONFIG = pytest.mark.parametrize(("page", "name"), CONFIGS, ids=[name for _, name in CONFIGS])


# Blocks of a page that no test runs, since their package is not installed.
NOT_RUN = {"my_torch.py"}


@BY_PAGE
def test_every_python_block_is_named_by_a_config(page: Path) -> None:
    output = files(page)
    configs = "".join(text for name, text in output.items() if name.endswith(".yaml"))
    for name in output:
        module = name.removesuffix(".py").replace("/", ".")
        is_named = name.endswith(".yaml") or re.search(rf"\b{re.escape(module)}\b", configs)
        assert is_named or name in NOT_RUN, name


@BY_PAGE
def test_python_blocks_import_hpc_es_extend_only(page: Path) -> None:
    for name, text in files(page).items():
        if name.endswith(".py"):
            assert not re.search(
                r"^\s*(?:from|import) hpc_es(?!\.extend import)", text, re.MULTILINE
            ), name


@BY_CONFIG
def test_code_of_a_page_runs(page: Path, name: str, tmp_path: Path) -> None:
    write(page, tmp_path)
    done = python(["-m", "hpc_es.main", name, "--output", "run", *SHORT], cwd=tmp_path)
    assert done.status == 0, str(done)
    assert newest(tmp_path / "run").state.generation == 2


@pytest.mark.long
@BY_CONFIG
def test_code_of_a_page_is_identical_on_three_ranks(page: Path, name: str, tmp_path: Path) -> None:
    """Runs to the end, so that updates, restarts and the end of a search are covered;
    resumed in the middle.
    """
    write(page, tmp_path)
    once = ["-m", "hpc_es.main", name, "--output"]
    whole = SHORT[1:]  # to the end that the page says
    for done in (
        python([*once, "one", *whole], cwd=tmp_path),
        mpiexec(3, [*once, "three", *SHORT], cwd=tmp_path),
        mpiexec(3, [*once, "three", *whole], cwd=tmp_path),
    ):
        assert done.status == 0, str(done)
    assert newest(tmp_path / "one").state.generation > 2
    assert digest(newest(tmp_path / "one")) == digest(newest(tmp_path / "three"))


@BY_PAGE
def test_commands_exist_and_name_files_of_the_page(page: Path) -> None:
    output = files(page)
    for language, _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in text.splitlines() if language == "sh" else ():
            words = shlex.split(line)
            assert words[0] == "hpc-es" or "hpc_es.main" in words, line
            for word in words:
                assert not word.endswith(".yaml") or word in output, line
            if words[0] == "mpiexec":
                assert (
                    shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()
                ), line


@BY_PAGE
def test_checks_and_options_of_a_page_succeed(page: Path, tmp_path: Path) -> None:
    write(page, tmp_path)
    lines = [
        text
        for language, _, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if language == "sh"
    ]
    for line in "".join(lines).splitlines():
        if re.match(r"hpc-es (check|options) ", line):
            done = python(["-m", "hpc_es", *shlex.split(line)[1:]], cwd=tmp_path)
            assert done.status == 0, str(done)


def test_errors_in_options_of_a_kind_are_reported(tmp_path: Path) -> None:
    """As the first page states: all at once, with a suggestion, before the run."""
    write(PAGES[[page.name for page in PAGES].index("index.md")], tmp_path)
    wrong = ["policy.width=3", "policy.initial_sdt=1"]
    done = python(["-m", "hpc_es", "check", "my.yaml", *wrong], cwd=tmp_path)
    assert done.status == 2
    assert (
        "expected an even number (try 4)" in done.stderr
        and "did you mean 'initial_std'?" in done.stderr
    )


PAGE: Mapping[str, str] = {
    "untitled": "```python\nx = 1\n```\n",
    "unknown": "```text\nx\n```\n",
}


@pytest.mark.parametrize("kind", PAGE)
def test_block_that_no_config_runs_is_detected(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "named", str)
    (tmp_path / "page.md").write_text(PAGE[kind], encoding="utf-8")
    with pytest.raises(AssertionError, match="block"):
        files(tmp_path / "page.md")
