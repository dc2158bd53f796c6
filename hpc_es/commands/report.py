"""Commands that show runs as a page: report, watch."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core.arguments import expanded_path, whole_number
from hpc_es.core.errors import READING, UserError, unreadable_reason
from hpc_es.core.paths import followed
from hpc_es.core.run_files import is_regular, owner
from hpc_es.core.streams import say_error

if TYPE_CHECKING:
    from hpc_es.report.page import Section
    from hpc_es.report.run_summary import RunSummary

LARGEST = 5_000_000  # bytes of a report
LEARNING_CURVES = 10  # trials of a tuning, the best ones


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the file and the title."""
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="RUN|DIR",
        type=expanded_path,
        help="run, repetitions or tuning, or a directory that contains some",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=expanded_path,
        default=Path("report.html"),
        help="page to write (default: report.html)",
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="title of the page (default: names of the directories)"
    )


def run_report(arguments: argparse.Namespace) -> int:
    """Write a page about runs, with curves, comparisons, failures and best solutions.

    The page is one HTML file that loads nothing from a network. It also has settings, time and
    versions. Runs that differ only in seed, name and output are one curve with its spread; several
    configurations are compared by medians, interquartile means with bootstrap intervals, and
    probabilities of improvement (Agarwal et al. 2021). Tunings are shown with the importance of
    hyperparameters. The runs may be in progress. Videos and pictures in a run directory are
    included.
    """
    from hpc_es.storage.files import write_text

    output: Path = arguments.output
    if output.suffix.lower() not in {".html", ".htm"}:
        raise UserError(f"{output}: expected a file name that ends in .html")
    text = report_page(arguments.directories, arguments.title)
    write_text(output, text)
    size = len(text.encode())
    say_error(f"{output} written ({size / 1e6:.1f} MB)\n")
    return 0


def report_page(
    directories: Sequence[Path],
    title: str | None = None,
    refresh_seconds: int = 0,
    version: str = "",
) -> str:
    """Return the page about all runs and tunings in these directories.

    Raises:
        UserError: there is none.
    """
    from hpc_es.core.machine import __version__
    from hpc_es.report.page import page
    from hpc_es.report.run_sections import unreadable_section
    from hpc_es.storage.results import is_missing, repetition_directories

    for directory in directories:
        if is_missing(directory):
            raise UserError(f"{directory}: expected a directory, found none")
    places = list(
        dict.fromkeys(path for directory in directories for path in runs_below(directory))
    )
    tunings = [path for path in places if is_regular(path / "trials.json")]
    runs = [
        run
        for path in places
        if path not in tunings
        for run in (repetition_directories(path) or [path])
    ]
    if not places:
        raise UserError(
            f"{', '.join(map(str, directories))}: expected a run or a tuning, found none"
        )
    unreadable: dict[Path, str] = {}
    sections = _run_sections(runs, unreadable)
    for index, path in enumerate(tunings):
        try:
            sections += list(_tuning(path, str(index) if len(tunings) > 1 or runs else ""))
        except (UserError, *READING) as error:
            unreadable[path] = unreadable_reason(error)
    if unreadable:
        sections.insert(0, unreadable_section(unreadable))
    name = title or ", ".join(
        followed(directory).name for directory in directories[:3]
    ) + ", ..." * (len(directories) > 3)
    return page(
        name,
        f"Written {time.strftime('%Y-%m-%d %H:%M %Z')} by hpc_es {__version__}",
        sections,
        refresh_seconds,
        version,
    )


def _run_sections(paths: Sequence[Path], unreadable: dict[Path, str]) -> list[Section]:
    """Return the sections about runs.

    Those that cannot be shown are left out, and added with the reason: of two that cannot be shown
    together, that of another user.
    """
    from hpc_es.report.run_sections import run_sections
    from hpc_es.report.run_summary import read_run

    runs: list[RunSummary] = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except (UserError, *READING) as error:
            unreadable[path] = unreadable_reason(error)
    shown: set[Path] = set()
    sections: list[Section] = []

    def add(more: Sequence[RunSummary]) -> None:
        """Show some more runs, or else those of them that can be shown beside the others."""
        nonlocal sections
        wanted = shown | {run.path for run in more}
        try:
            sections = run_sections([run for run in runs if run.path in wanted])
            shown.update(wanted)
        except (UserError, *READING) as error:
            if len(more) == 1:
                unreadable[more[0].path] = unreadable_reason(error)
            else:
                half = len(more) // 2
                add(more[:half])
                add(more[half:])

    if runs:
        add(sorted(runs, key=lambda run: owner(run.path) != os.geteuid()))
    return sections


def _tuning(path: Path, suffix: str) -> Iterator[Section]:
    """Yield the sections of a tuning, with the learning curves of its best trials."""
    from hpc_es.report.group_sections import curve_sections, groups_of
    from hpc_es.report.page import Section
    from hpc_es.report.run_summary import read_run
    from hpc_es.storage.results import repetition_directories
    from hpc_es.tuning.report import read_report
    from hpc_es.tuning.report_sections import trial_label, tuning_sections
    from hpc_es.tuning.trials import COMPLETE, Trial

    report = read_report(path)
    sections = tuning_sections(report)
    best = [Trial(path, row["trial"]).path for row in report.rows if row["state"] == COMPLETE][
        :LEARNING_CURVES
    ]
    runs = [read_run(run) for trial in best for run in (repetition_directories(trial) or [trial])]
    if runs:
        groups = [
            replace(group, label=trial_label(report, group.runs[0].path))
            for group in groups_of(runs)[0]
        ]
        sections[2:2] = curve_sections(groups, "Learning curves of the best trials")
    for section in sections:
        heading = f"{section.title} ({path.name})" if suffix else section.title
        yield Section(f"{section.id}{suffix and '-'}{suffix}", heading, section.content)


def runs_below(directory: Path) -> list[Path]:
    """Return the directories of runs, repetitions and tunings at or below a directory, sorted."""
    from hpc_es.storage.results import find_runs

    # one with a config alone is a run before its first checkpoint
    is_run = is_regular(directory / "config.yaml")
    return list(find_runs(directory)) or ([directory] if is_run else [])


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the directories, the port and the interval."""
    parser.add_argument(
        "directories",
        nargs="*",
        metavar="DIR",
        type=expanded_path,
        default=[],
        help="run, repetitions or tuning, or a directory that contains some (default: runs)",
    )
    parser.add_argument(
        "--port", metavar="N", type=int, default=0, help="port on 127.0.0.1 (default: a free one)"
    )
    parser.add_argument(
        "--interval",
        metavar="N",
        type=whole_number,
        default=15,
        help="seconds between two looks at the files (default: 15)",
    )
    parser.add_argument(
        "--text", action="store_true", help="show a table in the terminal instead of a page"
    )


def run_watch(arguments: argparse.Namespace) -> int:
    """Serve the page of `hpc-es report` on 127.0.0.1 until Ctrl-C.

    The page is up to date while runs are in progress. The command only reads files. The address
    contains a random word, because other users of the machine can reach it. From another machine:
    ssh -L PORT:127.0.0.1:PORT LOGIN_NODE, and the same address there. With --text it shows the
    table of `hpc-es list` in the terminal instead.
    """
    directories: list[Path] = arguments.directories or [Path("runs")]
    if arguments.text:
        return _watch_text(directories, arguments.interval)
    from hpc_es.report.server import serve

    serve(
        lambda version: report_page(directories, None, arguments.interval, version),
        directories,
        arguments.port,
    )
    return 0


def _watch_text(directories: Sequence[Path], interval: int) -> int:
    """Show the table of `hpc-es list` every `interval` seconds.

    On a terminal it replaces the one before.
    """
    from rich.console import Console

    from hpc_es.commands.runs import list_text

    console = Console(highlight=False, markup=False)
    with console.screen() if console.is_terminal else contextlib.nullcontext():
        while True:
            text = f"{list_text(directories)}\n{time.strftime('%H:%M:%S')}, every {interval} s, Ctrl-C ends"
            if console.is_terminal:
                console.clear()
            console.print(text, soft_wrap=True)
            console.file.flush()
            time.sleep(interval)
