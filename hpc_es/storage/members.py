"""Files of a front or an archive: `front.csv` or `archive.csv`, and the vectors as .npz.

The columns of the table are member, generation, job, cell, the parameters (of functions and
programs), the value or return, objectives, constraints, measures and metrics, and of a front
`choice`: "knee" or "best NAME" of members that stand out. Columns such as value_again have the
means of members that were evaluated again at the end.

The .npz file has `member`, `generation`, `job`, `cell` (int64), `choice`, `vectors`, [members,
params] as the search had them, `value` as in the table, `value_sign` (-1 if lower is better), the
columns of the rows with their names, such as `measure_names`, and of an archive its division:
`cells_low`, `cells_high`, `cells_count`, `cells_shape`, `cells_centres` and `cells_offset`. Further
evaluations are arrays such as again_measures, and `again`, their number for each member and for
all.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from hpc_es.core.array_files import load_arrays
from hpc_es.core.data import Array, Arrays, Float64, Json
from hpc_es.core.declarations import Incumbent
from hpc_es.core.domination import choices
from hpc_es.core.elites import MEMBER, Division, Elites
from hpc_es.core.errors import CheckpointError, printable, visible
from hpc_es.core.quantities import (
    CONSTRAINTS,
    MEASURES,
    METRICS,
    OBJECTIVES,
    Goal,
    Quantities,
)
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.storage.files import replace_by, write_text

STEMS: Mapping[Incumbent, str] = {"front": "front", "cells": "archive"}
FIRST = ("member", "generation", "job")
LONGEST_NAME = 100
# Whatever the numbers are, such a name is one word of a command.
_NAME = re.compile(r"g-?[0-9]+j-?[0-9]+")
MOST_CELLS = 10**8  # a picture of them takes 8 bytes of each
LARGEST_NUMBER = 1e150  # the square is still a number
FLOATS = (np.float16, np.float32, np.float64)
# what reading a file raises that is damaged, or was not written by `write_members`
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    ArithmeticError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Again:
    """What the members returned when they were evaluated again, at the end of a run."""

    each: int  # evaluations of a member
    evaluations: int  # of all members, with the one that looked for noise
    columns: Mapping[str, Array]  # as `Elites.columns`: means; NaN: all evaluations failed

    def arrays(self) -> Arrays:
        """Return arrays for the .npz file."""
        counts = np.array([self.each, self.evaluations], np.int64)
        return {"again": counts} | {f"again_{name}": a for name, a in self.columns.items()}


def read_again(run: Path, incumbent: Incumbent, elites: Elites) -> Again | None:
    """Return what these members returned again, if the files of a run have it."""
    path = run / f"{STEMS[incumbent]}.npz"
    try:
        arrays = load_arrays(path, leave_out=("vectors",), may_be_compressed=False)
        if _names(arrays) != elites.names:
            return None
        each, evaluations = arrays["again"].tolist()
        columns = {name: arrays[f"again_{name}"] for name in elites.columns}
        if any(columns[name].shape != elites.columns[name].shape for name in columns):
            return None
        return Again(int(each), int(evaluations), columns)
    except (*DAMAGE, CheckpointError):
        return None  # they are written anew


# What an evaluation returned, by group and name; None: it is not finite.
Returned: TypeAlias = Mapping[str, Mapping[str, float | None]]


class Member(NamedTuple):
    """One member of a front or archive."""

    name: str
    generation: int  # of its evaluation, counted from 0
    vector: Array  # dtype[params], as a candidate
    value: float | None  # with the user's sign; None: it has several objectives
    # what else its evaluation returned, such as {"objectives": {"mass": 2.0}}
    returned: Returned


def table_name(incumbent: Incumbent) -> str:
    """Return the name of the table of members."""
    return f"{STEMS[incumbent]}.csv"


def write_members(
    run: Path,
    incumbent: Incumbent,
    elites: Elites,
    *,
    quantities: Quantities,
    parameters: Sequence[Mapping[str, Json]] | None,
    goal: Goal | None = None,
    again: Again | None = None,
) -> None:
    """Replace the files of the members; RunError if they cannot be written.

    Args:
        run: the run directory.
        incumbent: "front" or "cells".
        elites: the members.
        quantities: the names of what they returned.
        parameters: their parameters by name, as in evaluations.csv; None if they have none.
        goal: of values, of which returns are the maximised form; None: there are only returns.
        again: what they returned when they were evaluated again; None: they were not.
    """
    stem = STEMS[incumbent]
    write_text(run / table_name(incumbent), _table(elites, quantities, parameters, goal, again))
    cells = {} if elites.cells is None else {"cell": elites.cells}
    arrays = {
        "member": np.array(elites.names, np.str_),
        "generation": elites.generations,
        "job": elites.jobs,
        **cells,
        **_choice_arrays(elites, quantities),
        "vectors": elites.vectors,
        **{_names_of(group): np.array(names) for group, names in quantities.groups.items()},
        **elites.columns,
        **_divided(elites.division),
        **({} if again is None else again.arrays()),
    }
    if (values := _values(elites, quantities, goal)) is not None:
        arrays |= {"value": values[1], "value_sign": np.array(values[2])}
    replace_by(run / f"{stem}.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _names_of(group: str) -> str:
    """Return the name of the array with the names of a group of quantities."""
    return f"{group[:-1]}_names"


def _divided(division: Division | None) -> Arrays:
    """Return a division as arrays."""
    if division is None:
        return {}
    return {
        "cells_low": division.low,
        "cells_high": division.high,
        "cells_count": np.array(division.count),
        "cells_shape": division.shape,
        "cells_centres": division.centres,
        "cells_offset": np.array(division.offset),
    }


def _values(
    elites: Elites, quantities: Quantities, goal: Goal | None
) -> tuple[str, Float64, int] | None:
    """Return the name of the values of members, if they have one, the values as in the table,
    float64[members], and -1 if lower is better, else 1.
    """
    if quantities.objectives:
        (name, *others), columns = quantities.objectives, elites.columns.get("objectives")
        if others or columns is None:
            return None
        return name, columns[:, 0], int(quantities.signs[0])
    if "return_" not in elites.columns:
        return None
    sign = -1 if goal == "minimise" else 1
    return "return" if goal is None else "value", sign * elites.columns["return_"], sign


def _choice_arrays(elites: Elites, quantities: Quantities) -> dict[str, Array]:
    """Return the array `choice`, so that a member can be named by what speaks for it."""
    if elites.cells is not None or OBJECTIVES not in elites.columns:
        return {}
    return {"choice": np.array(choices_of(elites, quantities), np.str_)}


def _table(
    elites: Elites,
    quantities: Quantities,
    parameters: Sequence[Mapping[str, Json]] | None,
    goal: Goal | None,
    again: Again | None,
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
    listed += _returned(elites, quantities, goal)
    if again is not None:
        numbers = _returned(replace(elites, columns=again.columns), quantities, goal)
        listed += [(f"{name}_again", column) for name, column in numbers]
    if elites.cells is None and OBJECTIVES in columns:
        listed.append(("choice", choices_of(elites, quantities)))
    rows = zip(*(column for _, column in listed), strict=True)
    return spreadsheet_text([[name for name, _ in listed], *rows])


def _returned(
    elites: Elites, quantities: Quantities, goal: Goal | None
) -> list[tuple[str, Sequence[object]]]:
    """Return what evaluations of the members returned, as pairs of name and column."""
    listed: list[tuple[str, Sequence[object]]] = []
    if not quantities.objectives and (values := _values(elites, quantities, goal)) is not None:
        listed.append((values[0], values[1].tolist()))
    for group, names in quantities.groups.items():
        if group in elites.columns:
            listed += zip(names, elites.columns[group].T.tolist(), strict=True)
    return listed


def choices_of(elites: Elites, quantities: Quantities) -> list[str]:
    """Return which members of a front are its knee, or the best of an objective, "" of others."""
    costs = -quantities.signs * np.asarray(elites.columns[OBJECTIVES], np.float64)
    return choices(costs, list(quantities.objectives))


@dataclass(frozen=True)
class StoredArchive:
    """An archive as a run has written it, without vectors."""

    path: Path  # of the file
    names: Sequence[str]  # of the members
    generations: Array  # int64[members]
    cells: Array  # int64[members, axes]
    measures: Float64  # float64[members, measures]
    measure_names: Sequence[str]
    values: Float64  # float64[members], in the sign of the user
    sign: int  # -1: lower is better
    division: Division

    def __len__(self) -> int:
        return len(self.names)


def read_archive(run: Path) -> StoredArchive:
    """Return the archive of a run; CheckpointError if it has none, or if it is damaged."""
    path = run / f"{STEMS['cells']}.npz"
    if not path.is_file():
        raise CheckpointError(
            f"{run}: expected the directory of a run whose algorithm keeps an archive of "
            f"cells, found no {path.name}"
        )
    try:
        arrays = load_arrays(path, leave_out=("vectors",), may_be_compressed=False)
        names = _names(arrays)
        if "cells_low" not in arrays:
            raise CheckpointError(f"{path}: its algorithm declares no cells (Elites.division)")
        division = Division(
            np.asarray(arrays["cells_low"], np.float64),
            np.asarray(arrays["cells_high"], np.float64),
            int(arrays["cells_count"]),
            np.asarray(arrays["cells_shape"], np.int64),
            np.asarray(arrays["cells_centres"], np.float64),
            float(arrays["cells_offset"]),
        )
        found = StoredArchive(
            path,
            names,
            np.asarray(arrays["generation"], np.int64),
            np.asarray(arrays["cell"], np.int64),
            np.asarray(arrays["measures"], np.float64),
            [str(name) for name in arrays["measure_names"]],
            np.asarray(arrays["value"], np.float64),
            int(arrays["value_sign"]),
            division,
        )
        _require_consistent(found)
    except DAMAGE as error:
        raise CheckpointError(f"{path}: is damaged or not an archive of cells: {error}") from error
    return found


def _require_consistent(archive: StoredArchive) -> None:
    """Raise ValueError if the arrays of an archive do not fit each other."""
    count, axes, division = len(archive), len(archive.measure_names), archive.division
    shape = division.shape
    if (archive.measures.shape, archive.values.shape) != ((count, axes), (count,)):
        raise ValueError(f"its measures are {list(archive.measures.shape)} for {count} members")
    if archive.cells.shape != (count, len(shape) or 1) or archive.generations.shape != (count,):
        raise ValueError(f"its cells are {list(archive.cells.shape)} for {count} members")
    if division.low.shape != (axes,) or division.high.shape != (axes,) or not axes:
        raise ValueError(f"its ranges are {list(division.low.shape)} for {axes} measures")
    numbers = (archive.measures, archive.values, division.low, division.high)
    if not all((np.abs(array) <= LARGEST_NUMBER).all() for array in numbers):
        raise ValueError("it has numbers that are not finite, or too large")
    if not 0 <= division.count <= MOST_CELLS:
        raise ValueError(f"it has {division.count:,} cells: expected at most {MOST_CELLS:,}")
    if any(len(name) > LONGEST_NAME or name != printable(name) for name in archive.measure_names):
        raise ValueError("the name of a measure is too long, or has characters that are no text")
    if not (division.low < division.high).all() or archive.sign not in (-1, 1):
        raise ValueError("a range is empty, or the sign is none")
    if len(shape):
        inside = ((archive.cells >= 0) & (archive.cells < shape)).all()
        is_grid = len(shape) == axes and (shape > 0).all()
        if not is_grid or not inside or math.prod(shape.tolist()) != division.count:
            raise ValueError(f"its cells are not in a grid of {shape.tolist()}")
    elif division.count < count or division.centres.shape != (division.count, axes):
        raise ValueError(f"its centres are {list(division.centres.shape)}")


def read_vectors(archive: StoredArchive) -> Array:
    """Return the vectors of all members, dtype[members, params]; CheckpointError if they are
    damaged.
    """
    try:
        vectors = load_arrays(archive.path, may_be_compressed=False)["vectors"]
        if vectors.ndim != 2 or vectors.dtype not in FLOATS or len(vectors) != len(archive):
            raise ValueError(f"the vectors are {vectors.dtype}{list(vectors.shape)}")
    except DAMAGE as error:
        raise CheckpointError(f"{archive.path}: is damaged: {error}") from error
    return vectors


def require_no_members(run: Path, which: str | None) -> None:
    """Raise CheckpointError for a run with a front, unless the user has chosen a member.

    Such a run has no best vector.
    """
    table = run / table_name("front")
    if which is None and table.is_file():
        raise CheckpointError(
            f"{run}: has a front and no best vector: expected --member knee or another NAME; {table.name} lists them"
        )


def read_member(run: Path, name: str) -> Member:
    """Return a member of the front or archive of a run; CheckpointError if there is none.

    Args:
        run: the run directory.
        name: such as "g12j7"; of an archive also its cell, "cell=3,4", or the measures that are to
            be near, "measures=0.2,0.5". Distances are those of measures with the range of all
            members.
    """
    if not run.is_dir():
        raise CheckpointError(
            f"{run}: expected the directory of a run, which has the file of the members, for "
            f"member {name!r}; a checkpoint has the best and the last theta"
        )
    return read_members(run, [name])[0]


def read_members(run: Path, names: Sequence[str]) -> list[Member]:
    """Return several members; see `read_member`."""
    for stem in STEMS.values():
        path = run / f"{stem}.npz"
        if path.is_file():
            return _members(path, names)
    raise CheckpointError(
        f"{run}: expected the directory of a run whose algorithm keeps a front or an archive, "
        f"found no {' or '.join(f'{stem}.npz' for stem in STEMS.values())}"
    )


def _members(path: Path, wanted: Sequence[str]) -> list[Member]:
    try:
        arrays = load_arrays(path, may_be_compressed=False)
        names, found = _names(arrays), list[Member]()
        for name in wanted:
            if (row := _row(path, arrays, name)) is None:
                raise CheckpointError(_missing(path, name, names))
            vector = np.array(arrays["vectors"][row])
            if vector.ndim != 1 or vector.dtype not in FLOATS:
                raise ValueError(f"the vector of {name} is {vector.dtype}{list(vector.shape)}")
            value = float(arrays["value"][row]) if "value" in arrays else None
            generation, returned = int(arrays["generation"][row]), _returned_by(arrays, row)
            found.append(Member(str(names[row]), generation, vector, value, returned))
    except DAMAGE as error:
        raise CheckpointError(f"{path}: is damaged or not a file of members: {error}") from error
    return found


def _missing(path: Path, name: str, names: Sequence[str]) -> str:
    """Return that there is no such member, and which there are."""
    what = f"no member {name}"
    if "=" not in name and not MEMBER.fullmatch(name):
        what = f"no member {name!r} (names are such as g12j7, cell=3,4 or measures=0.2,0.5)"
    elif name.startswith("cell="):
        what = f"no member in the cell {name.removeprefix('cell=')}"
    some = (
        f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({path.stem}.csv lists all)"
        if names
        else ""
    )
    return f"{path}: there is {what} among {len(names)}{some}"


def _returned_by(arrays: Mapping[str, Array], row: int) -> Returned:
    """Return what the evaluation of the member in this row returned, by group and name."""
    returned: dict[str, dict[str, float | None]] = {}
    for group in (OBJECTIVES, CONSTRAINTS, MEASURES, METRICS):
        # earlier versions wrote no names
        if group in arrays and _names_of(group) in arrays:
            numbers, listed = np.asarray(arrays[group][row], np.float64), arrays[_names_of(group)]
            if listed.shape != numbers.shape or listed.dtype.kind != "U":
                raise ValueError(f"the names of its {group} are {listed.dtype}{listed.shape}")
            names = [visible(str(name)) for name in listed]
            known = (number if math.isfinite(number) else None for number in numbers.tolist())
            returned[group] = dict(zip(names, known, strict=True))
    return returned


def _names(arrays: Mapping[str, Array]) -> list[str]:
    """Return the names of the members; ValueError if these and their generations are none."""
    member, generation = arrays["member"], arrays["generation"]
    if member.ndim != 1 or (member.dtype.kind != "U" and len(member)):
        raise ValueError(f"the names are {member.dtype}{list(member.shape)}")
    if generation.shape != member.shape or (generation.dtype.kind not in "iu" and len(member)):
        raise ValueError(f"the generations are {generation.dtype}{list(generation.shape)}")
    names = [str(name) for name in member]
    if not all(len(name) <= LONGEST_NAME and _NAME.fullmatch(name) for name in names):
        raise ValueError("the names are no names of members")
    return names


def _row(path: Path, arrays: Mapping[str, Array], name: str) -> int | None:
    """Return the row of a member by its name, by what speaks for it, by its cell, or by the nearest
    measures; None if there is none.
    """
    how, _, text = name.partition("=")
    names = _names(arrays)
    if how == "cell" and text:
        cells = _of_members(path, arrays, "cell", name)
        wanted = np.array(_numbers(path, text, int), np.int64)
        if len(wanted) != cells.shape[1]:
            raise CheckpointError(
                f"{path}: has {cells.shape[1]} numbers for each cell, found {name!r}"
            )
        same = np.flatnonzero((cells == wanted).all(axis=1))
        return int(same[0]) if len(same) else None
    if how == "measures" and text:
        measures = _of_members(path, arrays, "measures", name)
        point = np.array(_numbers(path, text, float))
        if len(point) != measures.shape[1]:
            raise CheckpointError(f"{path}: has {measures.shape[1]} measures, found {name!r}")
        if not np.isfinite(point).all():
            raise CheckpointError(f"{path}: expected finite numbers, found {name!r}")
        widths = np.ptp(measures, axis=0) if len(measures) else np.ones(len(point))
        distances = np.square((measures - point) / np.where(widths > 0, widths, 1.0)).sum(axis=1)
        return int(distances.argmin()) if len(distances) else None
    if name in names:
        return int(names.index(name))
    if "choice" not in arrays:
        return None
    texts = arrays["choice"]
    if texts.shape != (len(names),) or (texts.dtype.kind != "U" and len(names)):
        raise ValueError(f"the choices are {texts.dtype}{list(texts.shape)}")
    return next((row for row, text in enumerate(texts) if name in str(text).split(", ")), None)


def _of_members(path: Path, arrays: Mapping[str, Array], column: str, name: str) -> Array:
    """Return a column of an archive, [members, numbers]; CheckpointError if it has none."""
    if column not in arrays:
        what = "cells" if column == "cell" else column
        raise CheckpointError(
            f"{path}: its members have no {what}: expected the name of a member, found {name!r}"
        )
    return arrays[column]


def _numbers(path: Path, text: str, kind: type[int] | type[float]) -> list[float]:
    """Return the numbers in a text such as "3,4"."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        what = "whole numbers such as 3,4" if kind is int else "numbers such as 0.2,0.5"
        raise CheckpointError(f"{path}: expected {what}, found {text!r}") from None
