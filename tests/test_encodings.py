"""Text files and pipes are read and written as UTF-8, whatever the locale of a node is."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.harness import ROOT, python


def unspecified(source: str) -> list[int]:
    """Return the lines of calls that take the encoding of the locale."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and is_unspecified(node)
    ]


def is_unspecified(call: ast.Call) -> bool:
    function = call.func
    is_method = isinstance(function, ast.Attribute)
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    mode = (
        call.args[0 if is_method else 1]
        if len(call.args) > (0 if is_method else 1)
        else keywords.get("mode")
    )
    text = mode.value if isinstance(mode, ast.Constant) else None
    if "encoding" in keywords:
        return False
    if name in {"run", "Popen", "check_output"}:
        return not {"text", "universal_newlines"}.isdisjoint(keywords)
    if name == "open":  # other methods of this name have other arguments
        return len(call.args) < 4 and (mode is None or (isinstance(text, str) and "b" not in text))
    if name == "read_text":
        return is_method and not call.args
    return is_method and name in {
        "write_text",
        "loadtxt",
        "savetxt",
        "genfromtxt",
        "fdopen",
        "TextIOWrapper",
    }


def test_search_finds_calls_without_encoding() -> None:
    wrong = [
        "p.read_text()",
        "p.write_text(x)",
        "open(p)",
        "p.open('a')",
        "os.fdopen(3)",
        "np.loadtxt(p)",
    ]
    wrong += ["subprocess.run(c, text=True)", "subprocess.Popen(c, universal_newlines=True)"]
    right = [
        "p.read_text(encoding='utf-8')",
        "open(p, 'rb')",
        "p.open('wb')",
        "subprocess.run(c)",
        "os.open(p, 0)",
    ]
    right += [
        "problem.open(run)",
        "open(p, 'w', 1, 'utf-8')",
        "archive.open(name, 'w')",
        "package.read_text('FILE')",
    ]
    right += [
        "write_text(p, x)",
        "open(p, encoding='utf-8')",
        "subprocess.run(c, text=True, encoding='utf-8')",
    ]
    assert unspecified("\n".join(wrong)) == list(range(1, len(wrong) + 1))
    assert unspecified("\n".join(right)) == []


@pytest.mark.parametrize(
    "folder", sorted(path.name for path in (ROOT / "hpc_es").iterdir() if path.is_dir())
)
def test_every_file_and_pipe_has_an_encoding(folder: str) -> None:
    files = [*(ROOT / "hpc_es").glob("*.py"), *(ROOT / "hpc_es" / folder).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in unspecified(path.read_text(encoding="utf-8"))
    }
    assert not found


CONFIG = """
name: Prüfung
task: {kind: function, function: "fn:cost", parameters: {größe: {integer: true, low: 1, high: 8}}}
algorithm: {kind: cma_es}
repetitions: 2
output: runs/r
stop: {generations: 3}
"""


@pytest.mark.long
def test_run_in_a_latin_1_locale(tmp_path: Path) -> None:
    localedef = shutil.which("localedef")
    made = localedef and subprocess.run(
        [localedef, "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1")],
        check=False,
        capture_output=True,
    )
    if not made or made.returncode > 1:  # 1: with warnings
        pytest.skip("there is no localedef with en_US and ISO-8859-1 here")
    env = {
        "LOCPATH": str(tmp_path),
        "LC_ALL": "en_US.ISO-8859-1",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    (tmp_path / "c.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "fn.py").write_text(
        "def cost(größe):\n    return (größe - 3) ** 2\n", encoding="utf-8"
    )
    checked = python(
        ["-c", "import locale; print(locale.getpreferredencoding(False))"], cwd=tmp_path, env=env
    )
    assert checked.stdout == "ISO-8859-1\n", str(checked)
    for arguments in (
        ["-m", "hpc_es.main", "c.yaml"],
        ["-m", "hpc_es.main", "c.yaml"],
        ["-m", "hpc_es", "list", "runs"],
        ["-m", "hpc_es", "results", "runs/r"],
        ["-m", "hpc_es", "inspect", "runs/r/repetition_0001"],
        ["-m", "hpc_es", "report", "runs", "-o", "r.html"],
    ):
        done = python(arguments, cwd=tmp_path, env=env)
        assert done.status == 0, str(done)
    assert "Prüfung" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "größe" in (tmp_path / "runs" / "r" / "repetition_0000" / "evaluations.csv").read_text(
        encoding="utf-8"
    )
