"""The sections of a report on runs, such as the table of runs, settings and failures."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from hpc_es.config import extensions
from hpc_es.config.yaml_text import Dumper
from hpc_es.core.errors import READING, UserError, error_text, visible
from hpc_es.core.paths import followed
from hpc_es.core.run_files import is_regular, read_bytes
from hpc_es.core.vocabulary import Vocabulary, counted
from hpc_es.report.archive_section import archive_sections
from hpc_es.report.curves import shared_config, task_text
from hpc_es.report.design_sections import design_sections
from hpc_es.report.export import named_vector
from hpc_es.report.front_sections import front_sections
from hpc_es.report.fronts import read_front
from hpc_es.report.group_sections import (
    ReportedGroup,
    comparison_sections,
    curve_sections,
    groups_of,
)
from hpc_es.report.labels import flat
from hpc_es.report.page import (
    MISSING,
    Cell,
    Content,
    Element,
    Section,
    badge,
    details,
    duration_text,
    element,
    facts,
    large_text,
    number_cell,
    number_text,
    page,
    swatch,
    table,
)
from hpc_es.report.run_summary import ACTIVITIES, RunFailure, RunSummary
from hpc_es.storage.answers import MOST_NUMBERS, NAMES, best_of, x_text
from hpc_es.storage.members import STEMS, read_members
from hpc_es.storage.results import identity_digest

MOST_DETAILED = 60  # runs with a block of their own
MOST_ALERTS = 3  # runs with failed jobs that have a line each
MOST_FAILURES = 40  # tracebacks in the page
LARGEST_FRONT = 1 << 24  # bytes of a file whose vectors are read
MOST_MEDIA = 3_000_000  # bytes of all videos and pictures
MEDIA = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
NOT_FINISHED = ("failed", "killed", "interrupted")
# idle is the empty rest of the bar
WORK = ("environment", "policy")  # activities that jobs consist of
ACTIVITY_COLORS = {"environment": 0, "policy": 2, "update": 3, "messages": 4}


def run_sections(runs: Sequence[RunSummary]) -> list[Section]:
    """Return the sections of a report on at least one run."""
    _set_labels(runs)
    groups, copies = groups_of(runs)
    ids = {run.path: f"run-{index}" for index, run in enumerate(runs)}
    sections = [
        Section("summary", "Summary", [_tiles(runs, copies), *_alerts(runs, ids)]),
        *curve_sections(groups),
        *front_sections(groups),
        *design_sections(groups),
        Section("runs", "Runs", [_runs_table(groups, copies, ids)]),
        *comparison_sections(groups),
        *_settings(groups),
        *_time(groups),
        *_failures(runs),
        *_of_extensions(runs),
        Section("best", "Best solutions", _best(runs, ids)),
        *archive_sections([run.path for run in runs], [run.label for run in runs]),
        Section("details", "Runs in detail", _details(runs, ids)),
        *_environment(runs),
    ]
    return [section for section in sections if section.content]


def unreadable_section(reasons: Mapping[Path, str]) -> Section:
    """Return a section that names the runs that cannot be shown, and why."""
    items = [
        element("li", element("code", str(path)), f": {reason}", class_="bad")
        for path, reason in reasons.items()
    ]
    return Section("unreadable", "Unreadable", [element("ul", *items, class_="alerts")])


def _tiles(runs: Sequence[RunSummary], copies: Mapping[Path, RunSummary]) -> Element:
    runs = [run for run in runs if run.path not in copies]
    states = Counter(str(run.state["state"]) for run in runs)
    pairs = [(str(len(runs)), "run" if len(runs) == 1 else "runs")]
    pairs += [(f"{count}", state) for state, count in states.most_common()]
    if copies:
        pairs.append((str(len(copies)), "copy left out" if len(copies) == 1 else "copies left out"))
    total = {
        name: sum(float(counted(run.last_row, f"{name}_total") or 0) for run in runs)
        for name in ("timesteps", "seconds")
    }
    pairs.append((large_text(total["timesteps"]), _counted(runs)[0]))
    pairs.append((duration_text(total["seconds"]), "of training"))
    scored = [run for run in runs if run.score]
    if len({task_text(run.task_config) for run in scored}) == 1:
        best = scored[best_of([run.found for run in scored]) or 0]
        assert best.score
        what = "hypervolume of" if best.found.answer.kind == "front" else "best:"
        pairs.insert(0, (number_text(best.score.value), f"{what} {best.name}"))
    return element(
        "ul",
        *(element("li", element("strong", value), element("span", name)) for value, name in pairs),
        class_="tiles",
    )


def _alerts(runs: Sequence[RunSummary], ids: Mapping[Path, str]) -> list[Content]:
    """Return a list of runs that did not finish, failed jobs and unreadable files."""
    items = []
    with_failed = [run for run in runs if run.failed_jobs]
    is_summed = len(with_failed) > MOST_ALERTS
    if is_summed:
        items.append(_failed_in_all(with_failed, runs))
    for run in runs:
        link = element("a", run.label, href=f"#{ids[run.path]}")
        state = str(run.state["state"])
        if state in NOT_FINISHED:
            reason = str(
                run.state.get("reason")
                or ("its process ended without a message" if state == "killed" else "")
            )
            text = f"{': ' if reason else ''}{reason}" + (
                "" if "the same command" in reason else ". The same command resumes the run."
            )
            items.append(
                element(
                    "li", badge(state), " ", link, text, class_="bad" if state == "failed" else None
                )
            )
        if run.failed_jobs and not is_summed:
            share = run.failed_jobs / max(float(counted(run.last_row, "episodes_total") or 0), 1)
            items.append(
                element(
                    "li",
                    link,
                    f": {run.failed_jobs:,} failed jobs ({100 * share:.3g} % of all), see ",
                    element("a", "Failures", href="#failures") if run.failures else "the log",
                )
            )
        items += [element("li", link, f": {note}", class_="bad") for note in run.notes]
    return [element("ul", *items, class_="alerts")] if items else []


def _failed_in_all(with_failed: Sequence[RunSummary], runs: Sequence[RunSummary]) -> Content:
    """Return one line about the failed jobs of many runs; the table of runs has those of each."""
    failed = sum(run.failed_jobs for run in with_failed)
    jobs = sum(float(counted(run.last_row, "episodes_total") or 0) for run in runs)
    text = f"{len(with_failed)} of {len(runs)} runs have failed jobs: {failed:,} of {jobs:,.0f} "
    text += f"({100 * failed / max(jobs, 1):.3g} %), see "
    is_listed = any(run.failures for run in with_failed)
    where = element("a", "Failures", href="#failures") if is_listed else "the logs"
    return element("li", text, where, " and ", element("a", "Runs", href="#runs"))


def _set_labels(runs: Sequence[RunSummary]) -> None:
    """Name each run by its path below the directory that all runs have in common."""
    paths = [_resolved(run.path) for run in runs]  # once: somebody may exchange directories
    common = os.path.commonpath([path.parent for path in paths])
    for run, path in zip(runs, paths, strict=True):
        run.label = str(path.relative_to(common))


def _resolved(path: Path) -> Path:
    try:
        return followed(path)
    except OSError:
        return path.absolute()


def _counted(runs: Sequence[RunSummary]) -> tuple[str, str]:
    """Return what runs count, and the name of its rate; those without results do not matter."""
    drawn = [run for run in runs if run.curves]
    if drawn and all("evaluations" in run.measure.panels for run in drawn):
        return "evaluations", "evaluations/s"
    return "timesteps", "steps/s"


def _runs_table(
    groups: Sequence[ReportedGroup], copies: Mapping[Path, RunSummary], ids: Mapping[Path, str]
) -> Element:
    listed = [
        (run, group.color if group.curves else None) for group in groups for run in group.runs
    ]
    listed += [(run, None) for run in copies.values()]
    runs = [run for run, _ in listed]
    counted_name, rate = _counted(runs)
    head = [
        "run",
        "state",
        "score",
        "generations",
        counted_name,
        "wall time",
        rate,
        "busy",
        "failed jobs",
        "ranks",
        "seed",
    ]
    rows: list[list[Cell | Content]] = []
    for run, color in listed:
        row, name = run.last_row, element("span", None if color is None else swatch(color))
        label = run.label + " (copy)" * (run.path in copies)
        name.append(element("a", label, href=f"#{ids[run.path]}"))
        steps, seconds = counted(row, "timesteps_total"), row.get("seconds_total")
        speed = steps / seconds if steps and seconds else None
        generation = int(row["generation"]) + 1 if row else run.state.get("generation")
        rows.append(
            [
                name,
                badge(str(run.state["state"])),
                _score_cell(run),
                number_cell(generation),
                number_cell(steps),
                Cell(duration_text(seconds), seconds),
                number_cell(speed and float(f"{speed:.3g}")),
                Cell(MISSING if run.busy is None else f"{100 * run.busy:.0f} %", run.busy),
                number_cell(run.failed_jobs),
                number_cell(row.get("ranks")),
                str(run.config.get("seed", MISSING)),
            ]
        )
    if copies:
        return element(
            "div",
            table("Runs", head, rows, sortable=True),
            element(
                "p",
                "A copy has the config, the seed and the results of another run, "
                "and counts once with it.",
                class_="note",
            ),
        )
    return table("Runs", head, rows, sortable=True)


def _score_cell(run: RunSummary) -> Cell:
    if run.score is None:
        return Cell(MISSING)
    error = run.score.standard_error
    spread = f" ± {number_text(error)}" if error is not None else ""
    return Cell(number_text(run.score.value) + spread, run.score.value, run.score.source)


def _settings(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return the settings in which the groups differ, and those of the first group."""
    configs = [
        flat(shared_config(group.runs[0].config)) for group in groups if group.runs[0].config
    ]
    labels = [group for group in groups if group.runs[0].config]
    if not configs:
        return []
    content: list[Content] = []
    keys = [
        key
        for key in dict.fromkeys(key for config in configs for key in config)
        if key != "directory"
    ]
    different = [
        key for key in keys if len({_yaml(config.get(key, MISSING)) for config in configs}) > 1
    ]
    shared = [key for key in different if all(key in config for config in configs)]
    if len(configs) > 1:
        heads = ["key", *(group.label for group in labels)]

        def rows(chosen: Sequence[str]) -> list[list[Content]]:
            return [
                [
                    element("code", key),
                    *(_yaml(config[key]) if key in config else MISSING for config in configs),
                ]
                for key in chosen
            ]

        content.append(
            table("Settings that differ", heads, rows(shared))
            if shared
            else element("p", "All configurations have the same settings.")
        )
        if partial := [key for key in different if key not in shared]:
            text = "Settings that only some of the kinds have"
            content.append(details(f"{text} ({len(partial)})", table(text, heads, rows(partial))))
    first = labels[0].runs[0]
    text = yaml.dump(
        dict(first.config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110
    )
    content.append(details(f"All settings of {labels[0].label}", element("pre", text)))
    return [
        Section("settings", "Settings that differ" if len(configs) > 1 else "Settings", content)
    ]


def _yaml(value: object) -> str:
    return (
        "null"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def _activities(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return what to call the activities of runs, in the words of their tasks if all have them."""
    nouns = {run.measure.noun for run in runs if run.curves}
    seconds = {name: sum(run.seconds.get(name, 0.0) for run in runs) for name in ACTIVITIES}
    return Vocabulary(nouns.pop() if len(nouns) == 1 else "return").activities(seconds)


def _time(groups: Sequence[ReportedGroup]) -> list[Section]:
    """Return how the ranks spent their time: their mean, and the one that was busy longest."""
    runs = [run for group in groups for run in group.runs]
    rows: list[list[Cell | Content]] = []
    activities = _activities(runs)
    for run in runs:
        total = sum(run.seconds.values())
        if not total:
            continue
        bar = element("span", class_="bar", aria_hidden="true")
        for name, color in ACTIVITY_COLORS.items():
            share = 100 * run.seconds[name] / total
            bar.append(
                element(
                    "i",
                    style=f"width: {share:.2f}%; background: var(--line-{color})",
                    title=f"{activities.get(name, name)} {share:.0f} %",
                )
            )
        shares = [
            Cell(f"{100 * run.seconds[name] / total:.0f} %", run.seconds[name])
            for name in activities
        ]
        work, worst = (sum(of[name] for name in WORK) for of in (run.seconds, run.worst))
        balance = Cell(f"{worst / work:.2f}", worst / work) if work else Cell(MISSING)
        rows.append([run.label, bar, *shares, balance])
    if not rows:
        return []
    key = element("ul", class_="key")
    for name, text in activities.items():
        if name in ACTIVITY_COLORS:
            key.append(
                element(
                    "li",
                    element("i", style=f"background: var(--line-{ACTIVITY_COLORS[name]})"),
                    text,
                )
            )
    key.append(
        element(
            "li",
            element(
                "i", style="background: var(--raised); box-shadow: inset 0 0 0 1px var(--rule)"
            ),
            "idle",
        )
    )
    work_text = " and ".join(activities[name] for name in WORK if name in activities)
    note = f"Mean over the ranks. Imbalance: {work_text} on the rank with the most, divided by the mean."
    head = ["run", "share of the time", *activities.values(), "imbalance"]
    return [
        Section(
            "time",
            "Time",
            [key, table("Time by activity", head, rows), element("p", note, class_="note")],
        )
    ]


def _failures(runs: Sequence[RunSummary]) -> list[Section]:
    """Return the first failure of each kind, with the runs that have it."""
    kinds: dict[str, list[tuple[RunSummary, RunFailure]]] = {}
    for run in runs:
        for failure in run.failures:
            kinds.setdefault(failure.kind, []).append((run, failure))
    content: list[Content] = []
    for kind, entries in list(kinds.items())[:MOST_FAILURES]:
        run, failure = entries[0]
        text = element("pre", failure.details) if failure.details else None
        others = len({one.path for one, _ in entries}) - 1
        where = f" in {run.label}"
        where += f" and {others} other run{'s' * (others > 1)}" if others else ""
        title = element("span", element("strong", kind), where)
        content.append(details(title, element("p", failure.line), text, is_open=len(kinds) <= 3))
    if len(kinds) > MOST_FAILURES:
        more = len(kinds) - MOST_FAILURES
        content.append(
            element("p", f"{more} more kinds of failures are in the failures.log of the runs.")
        )
    if content:
        content.insert(
            0,
            element(
                "p", "The first failure of each kind, and how many runs have it.", class_="note"
            ),
        )
    return [Section("failures", "Failures", content)] if content else []


def _of_extensions(runs: Sequence[RunSummary]) -> list[Section]:
    """Return the sections that extensions add; one that fails is a section with the error."""
    sections: list[Section] = []
    for name, extension in extensions.every():
        if extension.report_sections:
            try:
                made: list[Section] = list(extensions.load(extension.report_sections)(runs))
                # ids of their own, so that no two sections have the same
                made = [replace(section, id=f"{name}-{section.id}") for section in made]
                page("", "", made)  # refuses what is no element
            # the package may raise anything, and the rest of the report is of use
            except Exception as error:
                note = element("p", f"The section of {name} cannot be made: {error_text(error)}")
                made = [Section(f"{name}-error", name, [note])]
            sections += made
    return sections


def _best(runs: Sequence[RunSummary], ids: Mapping[Path, str]) -> list[Content]:
    """Return the best vectors, programs or evaluations, and pictures of policies."""
    rows: list[list[Cell | Content]] = []
    media: list[Content] = []
    size = 0
    for run in runs:
        name = element("a", run.label, href=f"#{ids[run.path]}")
        rows += [[name, value, element("code", x)] for value, x in _chosen_members(run)]
        pairs = [] if run.found.answer.kind == "front" else _best_facts(run)
        if pairs:
            rows.append([name, pairs[0][1], *(element("code", text) for _, text in pairs[1:2])])
        files = (
            path
            for path in run.path.glob("*")
            if path.suffix.lower() in MEDIA and path.stem != "curve"
        )
        for file in sorted(filter(is_regular, files)):
            size += file.stat().st_size
            if size > MOST_MEDIA:
                media.append(element("p", f"{file} is left out: the report would be too large."))
                size -= file.stat().st_size
                continue
            kind = MEDIA[file.suffix.lower()]
            data = f"data:{kind};base64,{base64.b64encode(read_bytes(file, MOST_MEDIA)).decode()}"
            label = f"{run.label}: {file.name}"
            picture = (
                element("video", src=data, controls="", muted="", playsinline="", aria_label=label)
                if kind.startswith("video")
                else element("img", src=data, alt=label)
            )
            media.append(element("figure", element("figcaption", label), picture))
    content: list[Content] = (
        [table("Best solutions", ["run", "best", "where"], rows)] if rows else []
    )
    return [*content, element("div", *media, class_="media")] if media else content


def _chosen_members(run: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield what the members of a front that stand out are, and their parameters, or the command
    that evaluates them if these are many, those of a policy, or cannot be read.
    """
    front = read_front(run.path, run.config) if run.found.answer.kind == "front" else None
    if front is None:
        return
    rows = [row for row, choice in enumerate(front.choices) if choice]
    names = [front.members[row] for row in rows]
    where = [shlex.join(["hpc-es", "eval", str(run.path), "--member", name]) for name in names]
    # damaged, or written anew since it was read
    with contextlib.suppress(UserError, *READING):
        size = (run.path / f"{STEMS['front']}.npz").stat().st_size
        if not run.config.get("policy") and size <= LARGEST_FRONT:
            vectors = [member.vector for member in read_members(run.path, names)]
            where = [x_text(named_vector(vector, run.config), MOST_NUMBERS) for vector in vectors]
    for row, text in zip(rows, where, strict=True):
        values = zip(front.names, front.values[row].tolist(), strict=True)
        shown = ", ".join(f"{visible(name)} {number_text(value)}" for name, value in values)
        yield f"{front.choices[row]}: {shown}", text


def _best_facts(run: RunSummary) -> list[tuple[str, str]]:
    """Return names and values of the best solution; [] if there is none."""
    answer = run.found.answer
    if answer.value is None:
        return []
    violation = f", violation {number_text(answer.violation)}" if answer.violation else ""
    error = ""
    if answer.kind == "mean" and answer.standard_error is not None:
        error = f" ± {number_text(answer.standard_error)} ({answer.evaluations} evaluations)"
    value = (NAMES[answer.kind], number_text(answer.value) + error + violation)
    if answer.x is not None:
        return [value, ("x", x_text(answer.x, MOST_NUMBERS))]
    return (
        [value, ("command", shlex.join(["hpc-es", "eval", str(run.path)]))]
        if answer.is_evaluated_centre
        else [value]
    )


def _details(runs: Sequence[RunSummary], ids: Mapping[Path, str]) -> list[Content]:
    content: list[Content] = []
    for run in sorted(runs, key=lambda run: run.state["state"] not in NOT_FINISHED)[:MOST_DETAILED]:
        state = run.state
        pairs = [("directory", str(run.path)), ("state", str(state["state"]))]
        pairs += [
            (name, str(state[name]))
            for name in ("reason", "host", "pid", "job", "started", "heartbeat")
            if state.get(name)
        ]
        if digest := identity_digest(run.result):
            pairs.append(digest)
        content.append(
            element(
                "details",
                element("summary", badge(str(state["state"])), " ", run.label),
                facts(pairs),
                element("pre", run.log, tabindex="0", aria_label="End of log.txt")
                if run.log
                else None,
                class_="run",
                id=ids[run.path],
            )
        )
    if len(runs) > MOST_DETAILED:
        content.append(
            element("p", f"{len(runs) - MOST_DETAILED} more runs are in the table only.")
        )
    return content


def _environment(runs: Sequence[RunSummary]) -> list[Section]:
    """Return versions and machines.

    Values in which the runs differ are listed with the number of runs.
    """
    values: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in run.versions.items():
            if name not in {"import_paths", "sources", "earlier_sources"}:
                values.setdefault(name, Counter())[value] += 1
    pairs = []
    for name, counts in values.items():
        texts = [
            value if len(counts) == 1 else f"{value} ({count} of {len(runs)} runs)"
            for value, count in counts.most_common(4)
        ]
        pairs.append((name, "; ".join(texts) + ("; ..." if len(counts) > 4 else "")))
    return [Section("environment", "Environment", [facts(pairs)])] if pairs else []
