"""Files of a front or an archive: `front.csv` or `archive.csv`, and the vectors as .npz.

The columns of the table are member, generation, job, cell, the parameters (of functions and
programs), the value or return, objectives, constraints, measures and metrics. The .npz file has
`member`, `generation`, `job`, `cell` (int64), `vectors`, [members, params] as the search had them,
and the columns of the rows.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpc_es.core.array_files import load_arrays
from hpc_es.core.data import Array, Json
from hpc_es.core.declarations import Incumbent
from hpc_es.core.elites import MEMBER, Elites
from hpc_es.core.errors import CheckpointError
from hpc_es.core.plain import spreadsheet_cell
from hpc_es.core.quantities import Goal, Quantities
from hpc_es.storage.files import replace_by, write_text

STEMS: Mapping[Incumbent, str] = {"front": "front", "cells": "archive"}
FIRST = ("member", "generation", "job")


class Member(NamedTuple):
    """One member of a front or archive."""

    name: str
    generation: int  # of its evaluation, counted from 0
    vector: Array  # dtype[params], as a candidate


def table_name(incumbent: Incumbent) -> str:
    """Return the name of the table of members."""
    return f"{STEMS[incumbent]}.csv"


def write_members(
    run: Path,
    incumbent: Incumbent,
    elites: Elites,
    quantities: Quantities,
    parameters: Sequence[Mapping[str, Json]] | None,
    goal: Goal | None = None,
) -> None:
    """Replace the files of the members; RunError if they cannot be written.

    Args:
        run: the run directory.
        incumbent: "front" or "cells".
        elites: the members.
        quantities: the names of what they returned.
        parameters: their parameters by name, as in evaluations.csv; None if they have none.
        goal: of values, of which returns are the maximised form; None: there are only returns.
    """
    stem = STEMS[incumbent]
    write_text(run / table_name(incumbent), _table(elites, quantities, parameters, goal))
    cells = {} if elites.cells is None else {"cell": elites.cells}
    arrays = {
        "member": np.array(elites.names, np.str_),
        "generation": elites.generations,
        "job": elites.jobs,
        **cells,
        "vectors": elites.vectors,
        **elites.columns,
    }
    replace_by(run / f"{stem}.npz", lambda file: np.savez(file, **arrays), lambda _: None)  # type: ignore[arg-type]


def _table(
    elites: Elites,
    quantities: Quantities,
    parameters: Sequence[Mapping[str, Json]] | None,
    goal: Goal | None,
) -> str:
    """Return the members as CSV."""
    columns = elites.columns
    # Pairs of name and column, since a parameter may have any name.
    listed: list[tuple[str, Sequence[object]]] = [
        ("member", elites.names),
        ("generation", elites.generations.tolist()),
        ("job", elites.jobs.tolist()),
    ]
    if elites.cells is not None:
        listed.append(("cell", [" ".join(map(str, cell)) for cell in elites.cells.tolist()]))
    if parameters:
        listed += [(name, [row[name] for row in parameters]) for name in parameters[0]]
    if not quantities.objectives and "return_" in columns:
        sign = -1.0 if goal == "minimise" else 1.0
        listed.append(("return" if goal is None else "value", (sign * columns["return_"]).tolist()))
    for group, names in quantities.groups.items():
        if group in columns:
            listed += zip(names, columns[group].T.tolist(), strict=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([spreadsheet_cell(name) for name, _ in listed])
    writer.writerows(
        [
            [_cell(value) for value in row]
            for row in zip(*(column for _, column in listed), strict=True)
        ]
    )
    return text.getvalue()


def _cell(value: object) -> object:
    return repr(value) if isinstance(value, float) else spreadsheet_cell(value)


def require_no_members(run: Path, which: str | None) -> None:
    """Raise CheckpointError for a run with a front, unless the user has chosen a member.

    Such a run has no best vector.
    """
    table = run / table_name("front")
    if which is None and table.is_file():
        raise CheckpointError(
            f"{run}: has a front and no best vector: expected --member NAME; {table.name} lists them"
        )


def read_member(run: Path, name: str) -> Member:
    """Return a member of the front or archive of a run by its name.

    Raises:
        CheckpointError: there is none.
    """
    for stem in STEMS.values():
        path = run / f"{stem}.npz"
        if path.is_file():
            return _member(path, name)
    expected = "expected the directory of a run whose algorithm keeps a front or an archive"
    raise CheckpointError(
        f"{run}: {expected}, found no {' or '.join(f'{stem}.npz' for stem in STEMS.values())}"
    )


def _member(path: Path, name: str) -> Member:
    try:
        arrays = load_arrays(path)
        names = arrays["member"].tolist()
        if name in names:
            row = names.index(name)
            vector = np.array(arrays["vectors"][row])
            if vector.ndim != 1 or vector.dtype.kind != "f":
                raise ValueError(f"the vector of {name} is {vector.dtype}{list(vector.shape)}")
            return Member(name, int(arrays["generation"][row]), vector)
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        raise CheckpointError(f"{path}: is damaged or not a file of members: {error}") from error
    what = (
        f"no member {name}"
        if MEMBER.fullmatch(name)
        else f"no member {name!r} (names are such as g12j7)"
    )
    some = (
        f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({path.stem}.csv lists all)"
        if names
        else ""
    )
    raise CheckpointError(f"{path}: there is {what} among {len(names)}{some}")
