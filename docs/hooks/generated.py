"""Content that is generated from the package while the site is built, so that it cannot become
outdated.

The hook replaces these marks in a page:

    <!-- keys: all -->           all config keys, one table per section
    <!-- keys: task episodes --> the keys of one kind of task
    <!-- keys: site -->          the keys of a site profile
    <!-- help: eval -->          the output of `hpc-es eval --help`; `main` is python -m hpc_es.main
    <!-- help: all -->           the help of every command
    <!-- state: all -->          the state arrays of every algorithm and problem, from their
                                 docstrings
    <!-- example: command -->    the README and the files of examples/command
    <!-- file: CHANGELOG.md -->  a page of the repository's root

The version of the package is shown next to the name of the site.
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

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^<!-- (keys|help|state|example|file): ([\w. -]+?) -->$", re.MULTILINE)


def on_config(config: Any) -> None:
    """Append the version to the name of the site."""
    from hpc_es.core.machine import __version__

    config.site_name = f"{config.site_name} {__version__}"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page.

    Raise ValueError, which ends the build, for a mark without content.
    """
    replacements = {
        "keys": keys,
        "help": help_of,
        "state": states,
        "example": example,
        "file": root_page,
    }
    return MARK.sub(lambda mark: replacements[mark[1]](mark[2]), markdown)


ROW = re.compile(r"^\| `(?P<key>[\w.]+)`(?: \((?P<kinds>[\w, :.-]+)\))? \|(?P<cells>.*)\|$")
KEYS = '<div class="keys" markdown="1">\n\n| Key | Meaning | Default | Value |\n|---|---|---|---|\n{rows}\n</div>\n'
TOP = "The experiment"  # heading of the keys without a section


def keys(content: str) -> str:
    """Return the tables of a mark `keys`: `all`, a section, or a section and a kind."""
    if content == "all":
        sections = dict.fromkeys(section_of(row) for row in options())
        return "\n".join(
            f"## {section}\n\n{KEYS.format(rows=rows(section, ''))}" for section in sections
        )
    if content == "site":
        return KEYS.format(rows="".join(map(row_line, site_options())))
    section, _, kind = content.partition(" ")
    if not rows(section, kind):
        raise ValueError(f"no config keys for the mark 'keys: {content}'")
    return KEYS.format(rows=rows(section, kind))


@functools.cache
def options() -> tuple[re.Match[str], ...]:
    """Parse the Markdown table of all config keys."""
    from hpc_es.config.loading import table

    return parsed(table())


def site_options() -> tuple[re.Match[str], ...]:
    """Parse the Markdown table of the keys of a site profile."""
    from hpc_es.cluster.site import Site
    from hpc_es.config.options import markdown
    from hpc_es.config.options import rows as rows_of

    return parsed(markdown(rows_of(Site)))


def parsed(table: str) -> tuple[re.Match[str], ...]:
    """Parse the rows of a Markdown table of keys."""
    lines = table.splitlines()[2:]
    matches = [match for line in lines if (match := ROW.match(line))]
    if len(matches) != len(lines) or not matches:
        raise ValueError("docs/hooks/generated.py cannot parse the table of config keys")
    return tuple(matches)


def section_of(row: re.Match[str]) -> str:
    """Return the section of a key, TOP for keys without a dot."""
    return row["key"].partition(".")[0] if "." in row["key"] else TOP


def rows(section: str, kind: str) -> str:
    """Return the table rows of a section, restricted to one kind if `kind` is not empty."""
    lines = ""
    for row in options():
        kinds = row["kinds"] or ""
        if section_of(row) == section and (not kind or not kinds or kind in kinds.split(", ")):
            lines += row_line(row, f"<br><small>{kinds}</small>" if kinds and not kind else "")
    return lines


def row_line(row: re.Match[str], label: str = "") -> str:
    """Return the line of a key, with a label after its name."""
    value, default, meaning = re.split(r"(?<!\\) \| ", row["cells"].strip())
    return (
        f"| `{row['key']}`{label} | {escaped(meaning)} | {escaped(default)} | {escaped(value)} |\n"
    )


def escaped(cell: str) -> str:
    """Replace tags and braces outside of code by entities:
    Python-Markdown interprets them even after a backslash.
    """
    parts = re.split(r"(`[^`]*`)", cell)
    entities = {r"\<": "&lt;", "<": "&lt;", "{": "&#123;", "}": "&#125;"}
    parts[::2] = [
        re.sub(r"\\<|[<{}]", lambda match: entities[match[0]], part) for part in parts[::2]
    ]
    return "".join(parts)


def help_of(command: str) -> str:
    """Return the help of a command as a code block; for `all` that of every command,
    each with a heading.
    """
    if command == "all":
        from hpc_es.cli import names

        return "\n".join(f"## hpc-es {name}\n\n{help_of(name)}" for name in names())
    words = ["-m", "hpc_es", command, "--help"]
    if command == "main":
        words = ["-c", "from hpc_es.api.job import parser; parser().print_help()"]
    environ = {**os.environ, "COLUMNS": "84", "NO_COLOR": "1"}
    result = subprocess.run(  # noqa: S603
        [sys.executable, *words], env=environ, text=True, capture_output=True, check=True
    )
    return f"```text\n{result.stdout.rstrip()}\n```\n"


# by the suffix of an example's file
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", "": "python"}


def example(name: str) -> str:
    """Return the README of an example, one heading level down,
    followed by its files as code blocks.
    """
    folder = ROOT / "examples" / name
    text = re.sub(
        r"^#", "##", (folder / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in LANGUAGES and file.stat().st_size:
            title = file.relative_to(ROOT).as_posix()
            code = file.read_text(encoding="utf-8").rstrip()
            text += f'\n```{LANGUAGES[file.suffix]} title="{title}"\n{code}\n```\n'
    return text


def root_page(name: str) -> str:
    """Return a page of the repository's root, with links relative to docs/."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


SECTION = re.compile(r"^State, (shared|master):\n((?: +.*\n?)*)", re.MULTILINE)
CONTINUED = re.compile(r"\n {8,}")  # the lines of an array after its first one are indented
LINE = re.compile(
    r"(?P<name>\w+): (?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?P<grows>, grows)?"
    r"(?:, if (?P<condition>[^;]+))?; (?P<meaning>.+)"
)
REFERENCE = re.compile(r"those of `([\w.]+)`")
ARRAYS = "| Array | Rank | Type | Meaning |\n|---|---|---|---|\n"
PARTS = {  # sources of arrays other than the class of an algorithm, and their headings
    "hpc_es.algorithms.common.archive.Archive": "Archives",
    "hpc_es.algorithms.common.emitters.EmitterStrategy": "Emitters",
    "hpc_es.algorithms.common.optimizers.initial_slots": "Optimizer",
    "hpc_es.algorithms.common.distribution.DistributionStrategy": "Distribution strategies",
    "hpc_es.algorithms.common.mixed.MixedVector": "Discrete parameters",
    "hpc_es.algorithms.common.mixed.Categories": "Choices",
    "hpc_es.algorithms.common.injection.injected_in": "Injected candidates",
    "hpc_es.algorithms.common.front.Front": "Front",
    "hpc_es.algorithms.common.noise_handling.Noise": "Noise of evaluations",
    "hpc_es.algorithms.common.learning_rates.Rate": "Learning rates",
    "hpc_es.algorithms.common.stopping.initial_history": "Stopping criteria",
    "hpc_es.algorithms.common.distribution.Search": "Restarts",
    "hpc_es.programs.best_programs.initial_arrays": "Best programs",
    "hpc_es.tasks.problems.PolicyProblem": "Observation statistics",
    "hpc_es.tasks.functions.problem.ObjectiveProblem": "Objectives",
    "hpc_es.tasks.functions.best.BestRecord": "Best vector of an objective",
    "hpc_es.tasks.functions.repeats.Repeats": "Repeats",
    "hpc_es.tasks.functions.constraints.ConstrainedProblem": "Constraints",
    "hpc_es.tasks.functions.constraints.Lagrangian": "Augmented Lagrangian",
}


class StateArray(NamedTuple):
    """One array in the section `State` of a docstring."""

    name: str
    group: str  # shared or master
    dtype: str  # NumPy name; `dtype`: the dtype of theta
    shape: tuple[str, ...]
    grows: bool
    condition: str  # options for which it exists; empty: always
    meaning: str


def own_arrays(documented: Any) -> Iterator[StateArray | str]:
    """Yield the arrays in a docstring, and the dotted names that it refers to.

    Raise ValueError for any other line.
    """
    text = inspect.cleandoc(documented.__doc__ or "") + "\n"
    for section in SECTION.finditer(text):
        for line in CONTINUED.sub(" ", section[2]).splitlines():
            array, reference = LINE.fullmatch(line.strip()), REFERENCE.fullmatch(line.strip())
            if array:
                shape = tuple(array["shape"].split(", ")) if array["shape"] else ()
                rest = bool(array["grows"]), array["condition"] or "", array["meaning"]
                yield StateArray(array["name"], section[1], array["dtype"], shape, *rest)
            elif reference:
                yield reference[1]
            else:
                raise ValueError(
                    f"{documented.__qualname__}: not a line of a section State: {line!r}"
                )


def state_arrays(documented: Any) -> dict[tuple[str, str], StateArray]:
    """Return the arrays of an object by (group, name),
    including those of its base classes and references.
    """
    arrays: dict[tuple[str, str], StateArray] = {}
    for owner in reversed(documented.__mro__) if inspect.isclass(documented) else [documented]:
        for line in own_arrays(owner):
            if isinstance(line, str):
                arrays |= state_arrays(pydoc.locate(line))
            else:
                arrays[line.group, line.name] = line
    return arrays


def states(content: str) -> str:
    """Return the tables of the mark `state: all`: one per algorithm, then one per shared part."""
    from hpc_es.config.registry import kinds, module

    if content != "all":
        raise ValueError(f"no states for the mark 'state: {content}'")
    algorithms = {f"`{kind}`": module("algorithms", kind).build for kind in kinds("algorithms")}
    parts = {title: pydoc.locate(name) for name, title in PARTS.items()}
    return "\n".join(
        f"### {title}\n\n{state_table(documented)}"
        for title, documented in {**algorithms, **parts}.items()
    )


def state_table(documented: Any) -> str:
    """Return the table of an object's arrays, and links to the parts whose arrays it has too."""
    lines = list(own_arrays(documented))
    arrays = "".join(state_row(line) for line in lines if isinstance(line, StateArray))
    bases = documented.__mro__[1:] if inspect.isclass(documented) else ()
    names = [f"{base.__module__}.{base.__qualname__}" for base in bases if [*own_arrays(base)]]
    titles = [PARTS[name] for name in (*names, *(line for line in lines if isinstance(line, str)))]
    links = ", ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles)
    table = ARRAYS + arrays if arrays else ""
    return table + (f"\nThe arrays of {links} are stored too.\n" if links else "")


def state_row(array: StateArray) -> str:
    """Return the table row of an array."""
    rank = "all" if array.group == "shared" else "0"
    kind = f"{array.dtype}\\[{', '.join(array.shape)}\\]" + (", grows" if array.grows else "")
    condition = f"; if {array.condition}" if array.condition else ""
    return f"| `{array.name}` | {rank} | {kind} | {escaped(array.meaning + condition)} |\n"
