"""What the pages take from the package while the site is built, so that none of it can be out of date.

    <!-- keys: all -->           every config key, a table per section, from the table that `hpc-es options` prints
    <!-- keys: task episodes --> the keys that one kind of task has
    <!-- help: eval -->          what `hpc-es eval --help` prints; `main` is python -m hpc_es.main
    <!-- help: all -->           that of every command

Formulas in the pages become MathML, which browsers show without a script.
"""

from __future__ import annotations

import functools
import html
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MARK = re.compile(r"^<!-- (keys|help): ([\w. -]+?) -->$", re.MULTILINE)
ROW = re.compile(r"^\| `(?P<key>[\w.]+)`(?: \((?P<kinds>[\w, :.-]+)\))? \|(?P<rest>.*)$")
HEAD = "| Key | Value | Default | Meaning |\n|---|---|---|---|\n"
TOP = "The experiment"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page; ValueError, which ends the build, where a mark gives nothing."""
    return MARK.sub(lambda mark: {"keys": keys, "help": help_of}[mark[1]](mark[2]), markdown)


def keys(what: str) -> str:
    """The tables of a mark `keys:`."""
    if what == "all":
        return "\n".join(f"## {section}\n\n{HEAD}{rows(section, '')}" for section in sections())
    section, _, kind = what.partition(" ")
    found = rows(section, kind)
    if not found:
        raise ValueError(f"no config keys for the mark 'keys: {what}'")
    return HEAD + found


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
    kinds = f" ({row['kinds']})" if row["kinds"] and marked else ""
    return f"| `{row['key']}`{kinds} |{_escaped(row['rest'])}\n"


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
        command = [sys.executable, "-c", "from hpc_es.jobs.command import parser; parser().print_help()"]
    done = subprocess.run(command, env=environ, text=True, capture_output=True, check=True)  # noqa: S603  (our own)
    return done.stdout


def on_page_content(content: str, **_: Any) -> str:
    """Turn the formulas that pymdownx.arithmatex has marked into MathML."""
    inline = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
    block = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
    return block.sub(_mathml("block"), inline.sub(_mathml("inline"), content))


def _mathml(display: str) -> Callable[[re.Match[str]], str]:
    from latex2mathml.converter import convert

    return lambda formula: str(convert(html.unescape(formula[1]).strip(), display=display))
