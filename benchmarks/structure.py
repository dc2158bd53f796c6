"""Size and shape of the package as a Markdown table: `python -m benchmarks.structure [CHECKOUT ...]`.

Source files are only read. One run of es on Pendulum (configs/es_pendulum.yaml, one rank) is profiled in its own
process with the code of the checkout. No module of the package is named, except `hpc_es.main`, which starts the run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "hpc_es"
SHORT = 60  # lines
FILLERS = frozenset({"found", "told", "given", "made", "each", "place"})
GENERATION = 4  # last of the later generations that are profiled, of GENERATION + 2: without evaluation and checkpoint


@dataclass(frozen=True)
class Module:
    """A source file with its syntax tree; `name` is dotted, that of the package for an __init__ file."""

    path: str
    name: str
    text: str
    tree: ast.Module

    @property
    def is_init(self) -> bool:
        """Whether the file is an __init__."""
        return self.path.endswith("__init__.py")

    @property
    def lines(self) -> int:
        """The number of lines, as `wc -l` counts them."""
        return self.text.count("\n")


@dataclass
class Measure:
    """A row of the table for one checkout: title, target, value, and what was counted, for `--list`."""

    title: str
    target: str
    value: str
    items: list[str] = field(default_factory=list)


def modules(root: Path, folder: str) -> list[Module]:
    """Return the Python files under a folder of a checkout, sorted by path."""
    result = []
    for file in sorted((root / folder).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        result.append(Module(path, name, text, ast.parse(text)))
    return result


def importers(package: Sequence[Module]) -> dict[str, set[str]]:
    """Return, by path, which other files of the package import a file, at the top or inside functions."""
    by_name = {module.name: module for module in package}
    result: dict[str, set[str]] = defaultdict(set)
    for module in package:
        for name in _imported_names(module, by_name):
            if name in by_name and by_name[name] is not module:
                result[by_name[name].path].add(module.path)
    return result


def _imported_names(module: Module, by_name: dict[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.name.split(".")[
                    : None if module.is_init and node.level == 1 else -node.level + module.is_init
                ]
                base = ".".join([*parents, *filter(None, [base])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in by_name else base


REASONS = ("kind", "public", "program", "deferred import")


def reasons_to_stand_alone(package: Sequence[Module], reference: str = "") -> dict[str, str]:
    """Return, by path, why a file may have one importer.

    A config can name it as a kind; `hpc_es`, `python -m hpc_es` or the API reference (the text `reference`) makes it
    public; it is a program of its own; or it is imported inside functions only, which isolates optional libraries, what
    only rank 0 needs, and commands.
    """
    by_name = {module.name: module for module in package}
    public, at_top = set[str](), set[str]()
    for module in package:
        top = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        at_top |= {*_imported_names(replace(module, tree=ast.Module([*top], [])), by_name)}
        if module.path in (f"{PACKAGE}/__init__.py", f"{PACKAGE}/__main__.py"):
            public |= {*_imported_names(module, by_name)}
    result = {}
    for module in package:
        if is_kind(module):
            result[module.path] = REASONS[0]
        elif module.name in public or f"::: {module.name}." in reference:
            result[module.path] = REASONS[1]
        elif '\nif __name__ == "__main__":\n' in module.text:
            result[module.path] = REASONS[2]
        elif module.name not in at_top:
            result[module.path] = REASONS[3]
    return result


def is_kind(module: Module) -> bool:
    """Return whether a config can name the file: it declares a field `kind: Literal[...]`."""
    return any(
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "kind"
        and "Literal" in ast.unparse(node.annotation)
        for node in ast.walk(module.tree)
    )


def one_statement_helpers(package: Sequence[Module]) -> tuple[list[str], list[str]]:
    """Return the functions of one statement (not counting the docstring) used once, and those called at most once.

    A use is an occurrence of the name, counted in its file if the name is private and in the package if it is public.
    The second list compares the names of calls only, so it includes properties, callbacks and methods that only a base
    class calls.
    """
    in_file: dict[str, Counter[str]] = {}
    calls: Counter[str] = Counter()
    for module in package:
        names = in_file[module.path] = Counter()
        for node in ast.walk(module.tree):
            names[getattr(node, "id", getattr(node, "attr", ""))] += isinstance(node, ast.Name | ast.Attribute)
            if isinstance(node, ast.Call):
                calls[getattr(node.func, "id", getattr(node.func, "attr", ""))] += 1
    everywhere = sum(in_file.values(), Counter())
    used_once, called_once = [], []
    for module in package:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            is_overload = any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)
            if len(body) != 1 or isinstance(body[0], ast.Pass) or is_overload:
                continue
            item = f"{module.path}:{node.lineno} {node.name}"
            is_private = re.match(r"_[^_]", node.name) is not None
            uses = in_file[module.path] if is_private else everywhere
            used_once += [item] if uses[node.name] == 1 else []
            called_once += [item] if calls[node.name] <= 1 else []
    return used_once, called_once


def filler_names(package: Sequence[Module]) -> list[str]:
    """Return the variables, arguments, attributes, functions and classes that have a filler as their name."""
    result = []
    for module in package:
        for node in ast.walk(module.tree):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                    pass
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    pass
                case _:
                    continue
            if name.strip("_") in FILLERS:
                result.append(f"{module.path}:{node.lineno} {name}")
    return result


def any_in_contracts(package: Sequence[Module]) -> list[str]:
    """Return the occurrences of `Any` in the protocols and abstract classes of core/."""
    result = []
    for module in package:
        if module.path.startswith(f"{PACKAGE}/core/"):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef) and re.search(
                    r"\b(?:Protocol|ABC)\b", " ".join(map(ast.unparse, node.bases))
                ):
                    names = [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == "Any"]
                    result += [f"{module.path}:{one.lineno} {node.name}" for one in names]
    return result


def assertions(tests: Sequence[Module]) -> int:
    """Return the number of assert statements and of calls of pytest.raises, pytest.warns and np.testing.assert_*."""
    calls = re.compile(
        r"(?:^|\.)(?:raises|warns)$|(?:^|\.)assert_(?:allclose|almost_|approx_|array_|equal|less|string_)"
    )
    count = 0
    for module in tests:
        for node in ast.walk(module.tree):
            is_call = isinstance(node, ast.Call) and calls.search(ast.unparse(node.func)) is not None
            count += isinstance(node, ast.Assert) or is_call
    return count


PROFILER = """
import json, os, runpy, sys

package, metrics, result, later = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
sys.argv = ["hpc_es.main", *sys.argv[5:]]
known, generation, done, last = {}, 0, 0, None
files, functions, changes = [set()], [set()], [0]

def rows():
    try:
        with open(metrics, "rb") as file:
            return file.read().count(b"\\n")
    except OSError:
        return 0

def profile(frame, event, argument):
    global generation, done, last
    if event != "call":
        return
    code = frame.f_code
    path = known.get(code)
    if path is None:
        name = os.path.abspath(code.co_filename)
        ours = name.startswith(package + os.sep) and os.path.basename(name) != "__init__.py"
        path = known[code] = name[len(package) + 1:] if ours else ""
    if not path:
        return
    try:
        size = os.stat(metrics).st_size
    except OSError:
        size = 0
    if size != done:
        done = size
        generation = rows()
        while len(files) <= generation:
            files.append(set())
            functions.append(set())
            changes.append(0)
    files[generation].add(path)
    functions[generation].add((path, code.co_firstlineno, code.co_name))
    changes[generation] += path != last
    last = path

sys.setprofile(profile)
try:
    runpy.run_module("hpc_es.main", run_name="__main__", alter_sys=True)
except SystemExit as error:
    status = error.code
finally:
    sys.setprofile(None)
    later = min(range(1, min(later + 1, len(files))), key=lambda number: len(files[number]), default=0)
    with open(result, "w") as file:
        json.dump({
            "first": [sorted(files[0]), sorted(map(list, functions[0])), changes[0]],
            "later": [sorted(files[later]), sorted(map(list, functions[later])), changes[later]],
        }, file)
"""


def profiled(checkout: Path) -> dict[str, tuple[list[str], list[Any], int]]:
    """Return files, functions and changes of file of the `first` and a `later` generation of es on Pendulum.

    A generation ends when its row is appended to metrics.jsonl. The first one includes start-up, so an imported file
    counts as entered, and the bodies of its module and classes as functions. __init__ files do not count. The later one
    is that with the fewest files, since others may print a line of progress, which depends on the time.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, result = Path(folder) / "run", Path(folder) / "result.json"
        program = Path(folder) / "profiler.py"
        program.write_text(PROFILER, encoding="utf-8")
        overrides = [
            "stop.timesteps=null",
            "evaluation.interval=0",
            f"stop.generations={GENERATION + 2}",
            f"output={out}",
        ]
        command = [
            sys.executable, str(program), str(checkout / PACKAGE), str(out / "metrics.jsonl"), str(result),
            str(GENERATION), str(checkout / "configs" / "es_pendulum.yaml"), *overrides,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if run.returncode or not result.exists():
            sys.exit(f"the profiled run of {checkout} failed with status {run.returncode}:\n{run.stdout}{run.stderr}")
        measured: dict[str, tuple[list[str], list[Any], int]] = json.loads(result.read_text(encoding="utf-8"))
        return measured


def measures(checkout: Path) -> list[Measure]:
    """Return the rows of a checkout."""
    package, tests = modules(checkout, PACKAGE), modules(checkout, "tests")
    imported_by = importers(package)
    single = [module for module in package if len(imported_by[module.path]) == 1]
    reference = checkout / "docs" / "reference" / "api.md"
    reasons = reasons_to_stand_alone(package, reference.read_text(encoding="utf-8") if reference.exists() else "")
    short = [
        f"{module.path} {module.lines}"
        for module in package
        if module.lines < SHORT and not module.is_init and not is_kind(module)
    ]
    used_once, called_once = one_statement_helpers(package)
    generations = profiled(checkout)
    fillers = filler_names(package)
    contracts = any_in_contracts(package)
    total_any = sum(len(re.findall(r"\bAny\b", module.text)) for module in package)
    in_root = [module.path for module in tests if module.path.count("/") == 1]
    return [
        Measure(f"files of {PACKAGE}/", "at most 200", str(len(package))),
        Measure(f"lines of {PACKAGE}/", "reported", f"{sum(module.lines for module in package):,}"),
        _entered(
            "files entered from start to the end of the first generation", "at most 80", generations["first"], False
        ),
        _entered("files entered in one later generation", "at most 30", generations["later"], True),
        Measure(
            "files imported by exactly one other file",
            "at most 35, each with a reason",
            f"{len(single)} ({sum(module.path not in reasons for module in single)} without: {', '.join(REASONS)})",
            [
                f"{module.path} <- {next(iter(imported_by[module.path]))}  {reasons.get(module.path, '')}".rstrip()
                for module in single
            ],
        ),
        Measure(
            f"files under {SHORT} lines that are neither `__init__` nor a kind", "at most 30", str(len(short)), short
        ),
        Measure("functions with one statement used once", "at most 100", str(len(used_once)), used_once),
        Measure(
            "functions with one statement called by name at most once", "reported", str(len(called_once)), called_once
        ),
        Measure("`Any` in the package", "at most 600", f"{total_any:,}"),
        Measure("`Any` in protocols and abstract classes of core/", "0", str(len(contracts)), contracts),
        Measure(f"{', '.join(sorted(FILLERS))} as names", "at most 200", f"{len(fillers):,}", fillers),
        Measure('copies of "one generation" (training, ask/tell, plan, tests)', "1", "by reading"),
        Measure("Python files of tests/", "reported", str(len(tests))),
        Measure("of these in the root of tests/", "mirror the package", str(len(in_root)), in_root),
        Measure("assertions in tests/", "not fewer", f"{assertions(tests):,}"),
    ]


def _entered(title: str, target: str, generation: tuple[list[str], list[Any], int], with_changes: bool) -> Measure:
    files, functions, changes = generation
    more = f", {changes:,} changes of file" if with_changes else ""
    return Measure(title, target, f"{len(files)} ({len(functions)} functions{more})", files)


def table(columns: dict[str, list[Measure]]) -> str:
    """Return the Markdown table of the rows of each checkout, by its name."""
    lines = [["es on Pendulum, one rank, where a generation is named", *columns, "target"]]
    lines += [
        [rows[0].title, *(row.value for row in rows), rows[0].target] for rows in zip(*columns.values(), strict=True)
    ]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the table, or the same as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__)
    parser.add_argument(
        "checkouts", nargs="*", type=Path, default=[ROOT], help="folders with hpc_es/; default: this one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--list", metavar="TEXT", nargs="?", const="", help="print what was counted, in rows with TEXT")
    options = parser.parse_args()
    columns = {path.resolve().name: measures(path.resolve()) for path in options.checkouts}
    if options.json:
        print(json.dumps({name: [asdict(row) for row in rows] for name, rows in columns.items()}, indent=2))
        return
    print(table(columns))
    if options.list is not None:
        for name, rows in columns.items():
            for row in rows:
                if row.items and options.list in row.title:
                    print(f"\n{name}: {row.title}: {row.value}", *row.items, sep="\n  ")


if __name__ == "__main__":
    main()
