"""What the pages take from the package while the site is built, so that none of it can be out of date.

<!-- keys: all -->           every config key, a table per section, from the table that `hpc-es options` prints
<!-- keys: task episodes --> the keys that one kind of task has
<!-- help: eval -->          what `hpc-es eval --help` prints; `main` is python -m hpc_es.main
<!-- help: all -->           that of every command
<!-- state: all -->          the arrays of the state of every algorithm and problem, from their docstrings
<!-- example: command -->    the README and the files of examples/command
<!-- file: CHANGELOG.md -->  a page of the repository's root
"""

from __future__ import annotations

import functools
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MARK = re.compile(r"^<!-- (keys|help|state|example|file): ([\w. -]+?) -->$", re.MULTILINE)
ROW = re.compile(r"^\| `(?P<key>[\w.]+)`(?: \((?P<kinds>[\w, :.-]+)\))? \|(?P<rest>.*)$")
HEAD = '<div class="keys" markdown="1">\n\n| Key | Meaning | Default | Value |\n|---|---|---|---|\n'
END = "\n</div>\n"
TOP = "The experiment"
ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page; ValueError, which ends the build, where a mark gives nothing."""
    return MARK.sub(lambda mark: REPLACEMENTS[mark[1]](mark[2]), markdown)


def keys(what: str) -> str:
    """The tables of a mark `keys:`."""
    if what == "all":
        return "\n".join(f"## {section}\n\n{HEAD}{rows(section, '')}{END}" for section in sections())
    section, _, kind = what.partition(" ")
    found = rows(section, kind)
    if not found:
        raise ValueError(f"no config keys for the mark 'keys: {what}'")
    return HEAD + found + END


@functools.cache
def options() -> tuple[re.Match[str], ...]:
    """The rows of the table that `hpc-es options` prints."""
    from hpc_es.config.loading import table

    lines = table().splitlines()[2:]
    found = [match for line in lines if (match := ROW.match(line))]
    if len(found) != len(lines) or not found:
        raise ValueError("the table of `hpc-es options` is not what docs/hooks/generated.py reads")
    return tuple(found)


def sections() -> list[str]:
    """The sections of a config in their order; TOP has the keys without a dot."""
    return list(dict.fromkeys(_section(row) for row in options()))


def _section(row: re.Match[str]) -> str:
    return row["key"].partition(".")[0] if "." in row["key"] else TOP


def rows(section: str, kind: str) -> str:
    """The lines of a section, and of one kind of it, if that is named."""
    chosen = [row for row in options() if _section(row) == section and _has(row, kind)]
    marked = not kind  # a table of one kind need not name it
    return "".join(_line(row, marked) for row in chosen)


def _has(row: re.Match[str], kind: str) -> bool:
    return not kind or not row["kinds"] or kind in row["kinds"].split(", ")


def _line(row: re.Match[str], marked: bool) -> str:
    kinds = f"<br><small>{row['kinds']}</small>" if row["kinds"] and marked else ""
    value, default, meaning = re.split(r"(?<!\\) \| ", row["rest"].strip().removesuffix("|").strip() + " ")
    return f"| `{row['key']}`{kinds} | {_escaped(meaning)} | {_escaped(default)} | {_escaped(value)} |\n"


def _escaped(cells: str) -> str:
    """Outside of code, tags and braces as entities: Python-Markdown takes them for its own, also behind a backslash."""
    parts = re.split(r"(`[^`]*`)", cells)
    plain = {r"\<": "&lt;", "<": "&lt;", "{": "&#123;", "}": "&#125;"}
    parts[::2] = [re.sub(r"\\<|[<{}]", lambda found: plain[found[0]], part) for part in parts[::2]]
    return "".join(parts)


def help_of(what: str) -> str:
    """The help of a command, or of all, each below its heading."""
    if what != "all":
        return _fenced(_help(what))
    from hpc_es.cli import names

    return "\n".join(f"## hpc-es {name}\n\n{_fenced(_help(name))}" for name in names())


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


@functools.cache
def _help(name: str) -> str:
    environ = {**os.environ, "COLUMNS": "84", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "hpc_es", name, "--help"]
    if name == "main":
        command = [sys.executable, "-c", "from hpc_es.api.job import parser; parser().print_help()"]
    done = subprocess.run(command, env=environ, text=True, capture_output=True, check=True)  # noqa: S603  (our own)
    return done.stdout


SECTION = re.compile(r"^State, (shared|master):\n((?: +.*\n?)*)", re.MULTILINE)
LINE = re.compile(
    r"(?P<name>\w+): (?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?P<grows>, grows)?"
    r"(?:, if (?P<condition>[^;]+))?; (?P<meaning>.+)"
)
REFERENCE = re.compile(r"those of `([\w.]+)`")
ARRAYS = "| Array | Rank | Type | Meaning |\n|---|---|---|---|\n"
PARTS = {  # where arrays come from, besides the class of an algorithm itself, and their headings
    "hpc_es.algorithms.common.optimizers.initial_slots": "Optimizer",
    "hpc_es.algorithms.common.distribution.DistributionStrategy": "Searches by a distribution",
    "hpc_es.algorithms.common.stopping.initial_history": "Stop criteria",
    "hpc_es.algorithms.common.distribution.Search": "Restarts",
    "hpc_es.programs.best_programs.nothing": "Best programs",
    "hpc_es.tasks.policy_problems.PolicyProblem": "Observation statistics",
    "hpc_es.tasks.functions.problem.ObjectiveProblem": "Best vector of an objective",
}


class StateArray(NamedTuple):
    """A line of a section `State` of a docstring."""

    name: str
    group: str  # shared or master
    dtype: str  # as NumPy names it; `dtype`: that of theta
    shape: tuple[str, ...]
    grows: bool
    condition: str  # of its existence; empty: it always exists
    meaning: str


def own_arrays(documented: Any) -> Iterator[StateArray | str]:
    """Yield the arrays that a docstring lists, and the dotted names of what it refers to; ValueError of other lines."""
    text = inspect.cleandoc(documented.__doc__ or "") + "\n"
    for section in SECTION.finditer(text):
        for line in section[2].splitlines():
            array, reference = LINE.fullmatch(line.strip()), REFERENCE.fullmatch(line.strip())
            if array:
                shape = tuple(array["shape"].split(", ")) if array["shape"] else ()
                rest = bool(array["grows"]), array["condition"] or "", array["meaning"]
                yield StateArray(array["name"], section[1], array["dtype"], shape, *rest)
            elif reference:
                yield reference[1]
            else:
                raise ValueError(f"{documented.__qualname__}: not a line of a section State: {line!r}")


def state_arrays(documented: Any) -> dict[tuple[str, str], StateArray]:
    """The arrays of an object by (group, name), with those of its base classes and of what they refer to."""
    arrays = {}
    for owner in reversed(documented.__mro__) if inspect.isclass(documented) else [documented]:
        for line in own_arrays(owner):
            found = state_arrays(pydoc.locate(line)) if isinstance(line, str) else {(line.group, line.name): line}
            arrays |= found
    return arrays


def states(what: str) -> str:
    """The tables of the mark `state: all`: of every algorithm, then of what several of them have."""
    from hpc_es.config.registry import kinds, module

    if what != "all":
        raise ValueError(f"no states for the mark 'state: {what}'")
    algorithms = {f"`{kind}`": module("algorithms", kind).build for kind in kinds("algorithms")}
    parts = {title: pydoc.locate(name) for name, title in PARTS.items()}
    return "\n".join(f"### {title}\n\n{_state(documented)}" for title, documented in {**algorithms, **parts}.items())


def _state(documented: Any) -> str:
    lines = list(own_arrays(documented))
    rows = [_state_row(line) for line in lines if isinstance(line, StateArray)]
    bases = documented.__mro__[1:] if inspect.isclass(documented) else ()
    names = [f"{base.__module__}.{base.__qualname__}" for base in bases if [*own_arrays(base)]]
    titles = [PARTS[name] for name in (*names, *(line for line in lines if isinstance(line, str)))]
    links = ", ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles)
    table = ARRAYS + "".join(rows) if rows else ""
    return table + (f"\n{'And' if rows else 'Has'} the arrays of: {links}.\n" if links else "")


def _state_row(array: StateArray) -> str:
    rank = "all" if array.group == "shared" else "0"
    kind = f"{array.dtype}\\[{', '.join(array.shape)}\\]" + (", grows" if array.grows else "")
    condition = f"; if {array.condition}" if array.condition else ""
    return f"| `{array.name}` | {rank} | {kind} | {_escaped(array.meaning + condition)} |\n"


LANGUAGES = {".py": "python", ".yaml": "yaml", "": "python"}  # by the suffix of an example's file


def example(name: str) -> str:
    """The README of an example, one heading level down, and its files."""
    folder = ROOT / "examples" / name
    text = re.sub(r"^#", "##", (folder / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in LANGUAGES and file.is_file()]
    return text + "".join(_file(file) for file in files if file.stat().st_size)


def _file(file: Path) -> str:
    name = file.relative_to(ROOT).as_posix()
    return f'\n```{LANGUAGES[file.suffix]} title="{name}"\n{file.read_text(encoding="utf-8").rstrip()}\n```\n'


def root_page(name: str) -> str:
    """A page of the repository's root, with links that are relative to docs/."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


REPLACEMENTS = {"keys": keys, "help": help_of, "state": states, "example": example, "file": root_page}


def on_config(config: Any) -> None:
    """Show the version beside the site's name."""
    from hpc_es.core.version import __version__

    config.site_name = f"{config.site_name} {__version__}"
