"""Pictures of archives: which cells are filled, how good their members are, and how the archive has
grown.

Two measures are the axes of a heat map. One measure is the horizontal axis, with the value as
height; more measures are parallel axes, with a line for each member. Two small panels show coverage
and QD score.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from hpc_es.core.data import Float64
from hpc_es.core.errors import UserError, visible
from hpc_es.core.paths import followed
from hpc_es.core.run_files import make_directory
from hpc_es.core.vocabulary import counted
from hpc_es.report.curves import drawable
from hpc_es.report.plot import STYLE, SUFFIXES, UNDATED
from hpc_es.storage.files import run_error, written
from hpc_es.storage.members import StoredArchive, read_archive
from hpc_es.storage.metrics_log import each_row

COLORS = {1: "viridis", -1: "viridis_r"}  # by the sign: the best values are yellow
MOST_LINES = 5_000  # members with a line of their own across parallel axes
MOST_AXES = 40  # parallel ones; a picture has no room for more
MOST_CELLS = 4_000_000  # of a heat map, which has about a million dots
GROWTH = {"coverage": "share of filled cells", "qd_score": "QD score"}


def plot_archive(run: Path, output: Path, title: str | None = None) -> None:
    """Draw the archive of a run to a PNG, PDF or SVG file, which is replaced atomically.

    Raises UserError for an unknown suffix, CheckpointError for a run without an archive, RunError
    if the output cannot be written.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}"
        )
    archive = read_archive(run)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        picture = figure(archive, growth(run), title or visible(followed(run).name))
        try:
            make_directory(output.parent)
        except OSError as error:
            raise run_error(output, error) from error
        with written(output) as temporary:
            picture.savefig(temporary, format=kind, metadata=UNDATED[kind])


def growth(run: Path) -> dict[str, tuple[Float64, Float64]]:
    """Return evaluations and values of the metrics in GROWTH that the run has."""
    columns: dict[str, list[tuple[float, float]]] = {name: [] for name in GROWTH}
    for row in each_row(run):
        for name, points in columns.items():
            point = drawable(counted(row, "episodes_total") or 0), drawable(row.get(name))
            if not np.isnan(point).any():
                points.append(point)
    return {
        name: (np.array(points)[:, 0], np.array(points)[:, 1])
        for name, points in columns.items()
        if points
    }


def figure(archive: StoredArchive, grown: dict[str, tuple[Float64, Float64]], title: str) -> Figure:
    """Return the figure at 150 dots per inch."""
    result = Figure(figsize=(8.0, 4.8), dpi=150)
    result.set_layout_engine("constrained", wspace=0.06)
    result.suptitle(f"{title}: {len(archive):,} of {archive.division.count:,} cells", fontsize=11)
    columns = (3, 1) if grown else (1,)
    grid = result.add_gridspec(max(len(grown), 1), len(columns), width_ratios=columns)
    ax = result.add_subplot(grid[:, 0])
    norm = _norm(archive.values, archive.sign)
    draw(ax, archive, norm)
    bar = result.colorbar(ScalarMappable(norm, COLORS[archive.sign]), ax=ax, pad=0.01, aspect=35)
    bar.outline.set_visible(False)
    bar.set_label(f"value ({'higher' if archive.sign > 0 else 'lower'} is better)")
    for row, (name, (x, y)) in enumerate(grown.items()):
        small = result.add_subplot(grid[row, 1])
        small.plot(x, y, color="#0072B2", lw=1.5)
        small.set_title(GROWTH[name], fontsize=9)
        small.set_ylim(bottom=0 if y.min() >= 0 else None)
        small.set_xlim(left=0)
        for axis in (small.xaxis, small.yaxis):
            axis.set_major_formatter(FuncFormatter(_short))
        small.xaxis.set_major_locator(MaxNLocator(3))
        if row == len(grown) - 1:
            small.set_xlabel("evaluations")
    return result


def _short(value: float, _: object) -> str:
    """Return a number of an axis, such as 0.5 or 20k."""
    return f"{value:g}" if abs(value) < 1_000 else EngFormatter(sep="")(value)


def _norm(values: Float64, sign: int) -> Normalize:
    """Return the scale of colours, without the worst 1 % of the values."""
    if not len(values):
        return Normalize(0, 1)
    shares = (0.01, 1.0) if sign > 0 else (0.0, 0.99)
    low, high = np.quantile(values, shares).tolist()
    return Normalize(low, high if high > low else low + 1)


def draw(ax: Axes, archive: StoredArchive, norm: Normalize) -> None:
    """Draw the members."""
    count = len(archive.measure_names)
    if count == 1:
        _draw_heights(ax, archive, norm)
    elif count == 2 and len(archive.division.shape) and archive.division.count <= MOST_CELLS:
        _draw_cells(ax, archive, norm)
    elif count == 2:
        _draw_points(ax, archive, norm)
    else:
        _draw_parallel(ax, archive, norm)


def _draw_heights(ax: Axes, archive: StoredArchive, norm: Normalize) -> None:
    x, y = archive.measures[:, 0], archive.values
    ax.scatter(x, y, c=y, cmap=COLORS[archive.sign], norm=norm, s=12)
    ax.set_xlim(float(archive.division.low[0]), float(archive.division.high[0]))
    ax.set_xlabel(visible(archive.measure_names[0]))
    ax.set_ylabel("value")


def _draw_cells(ax: Axes, archive: StoredArchive, norm: Normalize) -> None:
    low, high, shape = archive.division.low, archive.division.high, archive.division.shape
    values = np.full(tuple(shape.tolist()), np.nan)
    values[tuple(archive.cells.T)] = archive.values
    edges = [np.linspace(low[axis], high[axis], int(shape[axis]) + 1) for axis in range(len(shape))]
    mesh = ax.pcolormesh(
        edges[0], edges[1], values.T, cmap=COLORS[archive.sign], norm=norm, rasterized=True
    )
    mesh.set_edgecolor("face")
    _label(ax, archive)


def _draw_points(ax: Axes, archive: StoredArchive, norm: Normalize) -> None:
    x, y = archive.measures.T
    size = float(np.clip(30_000 / archive.division.count, 2, 60))
    ax.scatter(
        x, y, c=archive.values, cmap=COLORS[archive.sign], norm=norm, s=size, lw=0, rasterized=True
    )
    _label(ax, archive)


def _label(ax: Axes, archive: StoredArchive) -> None:
    low, high = archive.division.low, archive.division.high
    ax.set_xlim(float(low[0]), float(high[0]))
    ax.set_ylim(float(low[1]), float(high[1]))
    ax.set_xlabel(visible(archive.measure_names[0]))
    ax.set_ylabel(visible(archive.measure_names[1]))
    ax.grid(False)


def _draw_parallel(ax: Axes, archive: StoredArchive, norm: Normalize) -> None:
    """Draw a line per member, the best ones last; their number is limited."""
    low, high = archive.division.low[:MOST_AXES], archive.division.high[:MOST_AXES]
    names = archive.measure_names[:MOST_AXES]
    if (count := len(archive.measure_names)) > len(names):
        ax.set_title(f"the first {len(names)} of {count:,} measures", fontsize=9)
    order = np.argsort(archive.values, kind="stable")
    order = order[:: -(-len(order) // MOST_LINES) or 1]
    measures = archive.measures[order, :MOST_AXES]
    heights = np.clip((measures - low) / (high - low), 0, 1)
    x = np.broadcast_to(np.arange(len(names), dtype=np.float64), heights.shape)
    lines = LineCollection(
        list(np.stack([x, heights], axis=2)),
        cmap=COLORS[archive.sign],
        norm=norm,
        lw=0.6,
        alpha=0.6,
    )
    lines.set_array(archive.values[order])
    lines.set_rasterized(True)
    ax.add_collection(lines)
    ax.set_xlim(0, len(names) - 1)
    ax.set_ylim(0, 1)
    ax.set_xticks(
        range(len(names)), [_with_range(*item) for item in zip(names, low, high, strict=True)]
    )
    ax.set_yticks([])
    ax.grid(True, axis="x", color="#555555")


def _with_range(name: str, low: float, high: float) -> str:
    return f"{visible(name)}\n{low:g} to {high:g}"
