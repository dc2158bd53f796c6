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
from tests.helpers.harness import ROOT, install, mpiexec, python
from tests.helpers.runs import digest, newest

PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
ENDINGS = {"python": ".py", "yaml": ".yaml", "toml": ".toml"}
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
        assert language in ENDINGS or language == "sh", f"{named(page)} has a block of {language!r}"
        if language == "sh":
            continue
        assert name, f"{named(page)} has a block without a title: it would not be run\n{text}"
        assert name not in result, name
        assert name.endswith(ENDINGS[language]), name
        result[name] = text
    return result


def environment(folder: Path) -> dict[str, str]:
    """Where the package of a page is installed, if it has one."""
    return {"PYTHONPATH": str(folder / "site")} if (folder / "site").exists() else {}


def write(page: Path, folder: Path) -> list[str]:
    """Write the files of a page; return the configs."""
    output = files(page)
    for name, text in output.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.parent != folder:
            (path.parent / "__init__.py").touch()
    if PROJECT in output:
        install(folder, folder / "site")
    return [name for name in output if name.endswith(".yaml")]


CONFIGS = [(page, name) for page in PAGES for name in files(page) if name.endswith(".yaml")]
BY_CONFIG = pytest.mark.parametrize(("page", "name"), CONFIGS, ids=[name for _, name in CONFIGS])


PROJECT = "pyproject.toml"  # a page with this file is a package, which is installed
# Blocks of a page that no test runs, since their package is not installed.
NOT_RUN = {"my_torch.py"}


@BY_PAGE
def test_every_python_block_is_named_by_a_config(page: Path) -> None:
    output = files(page)
    is_package = PROJECT in output  # whose modules name each other
    naming = {name: text for name, text in output.items() if is_package or ".yaml" in name}
    for name in output:
        if not name.endswith(".py"):
            continue
        module = re.escape(name.removesuffix(".py").replace("/", "."))
        others = "".join(text for other, text in naming.items() if other != name)
        assert re.search(rf"\b{module}\b", others) or name in NOT_RUN, name


@BY_PAGE
def test_python_blocks_import_hpc_es_extend_only(page: Path) -> None:
    for name, text in files(page).items():
        if name.endswith(".py"):
            others = r"^\s*(?:from|import) hpc_es(?!\.extend(?:\.\w+)? import)"
            assert not re.search(others, text, re.MULTILINE), name


@BY_CONFIG
def test_code_of_a_page_runs(page: Path, name: str, tmp_path: Path) -> None:
    write(page, tmp_path)
    env = environment(tmp_path)
    done = python(["-m", "hpc_es.main", name, "--output", "run", *SHORT], env=env, cwd=tmp_path)
    assert done.status == 0, str(done)
    assert newest(tmp_path / "run").state.generation == 2


def test_own_task_with_objectives_has_a_front_and_progress_by_their_names(tmp_path: Path) -> None:
    """The objectives are those of the problem: the task need not declare them in OFFERS, too."""
    write(ROOT / "docs" / "extending" / "tasks.md", tmp_path)
    done = python(
        ["-m", "hpc_es.main", "tradeoff.yaml", "--output", "run", "evaluation.interval=1"],
        cwd=tmp_path,
    )
    assert done.status == 0, str(done)
    (last,) = [line for line in done.stdout.splitlines() if line.startswith("generation 10 of 10")]
    # no values of the centre, which is nobody's result
    assert "best left" in last and "best right" in last and "centre" not in last, last
    header, *members = (tmp_path / "run" / "front.csv").read_text().splitlines()
    assert header == "member,generation,job,x,y,left,right,inside,height,choice"
    for member in members:
        x, y, left, right, inside, height = map(float, member.split(",")[3:9])
        assert (left, right) == pytest.approx(((x + 1) ** 2 + y**2, (x - 1) ** 2 + y**2))
        assert x**2 + y**2 >= 0.25 and inside <= 0 and height == y
    assert members


@pytest.mark.long
@BY_CONFIG
def test_code_of_a_page_is_identical_on_three_ranks(page: Path, name: str, tmp_path: Path) -> None:
    """Runs to the end, so that updates, restarts and the end of a search are covered;
    resumed in the middle.
    """
    write(page, tmp_path)
    once = ["-m", "hpc_es.main", name, "--output"]
    whole = SHORT[1:]  # to the end that the page says
    env = environment(tmp_path)
    for done in (
        python([*once, "one", *whole], env=env, cwd=tmp_path),
        mpiexec(3, [*once, "three", *SHORT], env=env, cwd=tmp_path),
        mpiexec(3, [*once, "three", *whole], env=env, cwd=tmp_path),
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
            is_installed = PROJECT in output and line == "pip install ."
            is_help = line.startswith(("python -m pydoc ", 'python -c "import inspect'))
            is_ours = words[0] == "hpc-es" or "hpc_es.main" in words
            assert is_ours or is_installed or is_help, line
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


@pytest.mark.long
def test_command_of_the_package_runs(tmp_path: Path) -> None:
    """The mean of standard deviations from 0.5, of which 1e-3 remain at least."""
    write(ROOT / "docs" / "extending" / "packages.md", tmp_path)
    env = environment(tmp_path)
    train = ["-m", "hpc_es.main", "cartpole.yaml", "--output", "run", *SHORT]
    assert python(train, env=env, cwd=tmp_path).status == 0
    done = python(["-m", "hpc_es", "final-deviation", "run"], env=env, cwd=tmp_path)
    assert done.status == 0, str(done)
    assert 1e-3 < float(done.stdout) < 0.5


def test_errors_in_options_of_a_kind_are_reported(tmp_path: Path) -> None:
    """As the first page states: before the run, values with a suggestion first."""
    write(PAGES[[page.name for page in PAGES].index("index.md")], tmp_path)
    for wrong, said in (
        ("policy.initial_sdt=1", "did you mean 'initial_std'?"),
        ("policy.width=3", "expected an even number (try 4)"),
    ):
        done = python(["-m", "hpc_es", "check", "my.yaml", wrong], cwd=tmp_path)
        assert done.status == 2 and said in done.stderr


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
