"""The section of the HTML report on searches for programs: how many found a correct one, and after
how many programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from hpc_es.extend.reports import (
    Cell,
    Content,
    RunSummary,
    Section,
    element,
    number_cell,
    number_text,
    table,
)

LONGEST = 200  # characters of a program that is shown


def sections(runs: Sequence[RunSummary]) -> list[Section]:
    """Return the section of the finished searches among the runs; [] if there are none."""
    searches: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for run in runs:
        if run.state.get("state") == "finished" and _is_search(run.result):
            task = run.task_config.get("task")
            name = task.get("name") if isinstance(task, Mapping) else None
            searches.setdefault((str(name), run.name), []).append(run.result)
    if not searches:
        return []
    rows = [_row(task, name, results) for (task, name), results in sorted(searches.items())]
    head = ["task", "search", "runs", "solved", "mean NPE", "shortest correct program"]
    note = "NPE: programs executed until the first correct one, or by the whole run without one."
    content: list[Content] = [
        table("Searches for programs", head, rows, sortable=True),
        element("p", note, class_="note"),
    ]
    return [Section("programs", "Programs", content)]


def _is_search(result: Mapping[str, object]) -> bool:
    """Return whether a result.json is that of a search: anybody may have written it."""
    npe, success = result.get("npe"), result.get("success")
    return type(npe) is int and npe >= 0 and isinstance(success, bool)


def _row(task: str, name: str, results: Sequence[Mapping[str, object]]) -> list[Cell | Content]:
    solved = [result for result in results if result["success"]]
    programs = sorted(
        (text for result in solved if isinstance(text := result.get("code_solution"), str)),
        key=lambda text: (len(text), text),
    )
    share = len(solved) / len(results)
    mean = fmean(min(float(str(result["npe"])), 1e300) for result in results)
    return [
        task,
        name,
        number_cell(len(results)),
        Cell(f"{share:.0%}", share),
        Cell(number_text(mean), mean),
        element("code", programs[0][:LONGEST]) if programs else "",
    ]
