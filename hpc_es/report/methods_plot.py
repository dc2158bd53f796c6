"""The picture of `report.methods`: profile, probability of improvement, and time to a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpc_es.core.data import Float64
from hpc_es.core.spreadsheets import spreadsheet_text
from hpc_es.report.curves import X_AXES, X
from hpc_es.report.methods import Method, Step, performance_profile, reached_by
from hpc_es.report.plot import CSV, DASHES, PALETTE, STYLE, SUFFIXES, UNDATED, WIDTH, require_suffix
from hpc_es.report.ticks import label_linear_axis
from hpc_es.storage.files import write_text, written

PANEL_HEIGHT = 2.6  # inches
BESIDE = 2.4  # inches that a panel needs at least; otherwise they are below each other


def plot_methods(
    methods: Sequence[Method],
    outputs: Sequence[Path],
    *,
    x: X,
    target: float | None,
    width: float | None = None,
    title: str | None = None,
) -> None:
    """Draw the methods to PNG, PDF or SVG files, or write what is drawn as CSV."""
    for output in outputs:
        require_suffix(output, (*SUFFIXES, CSV))
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        for output in outputs:
            kind = output.suffix.lower().removeprefix(".")
            if output.suffix.lower() == CSV:
                write_text(output, _table(methods))
                continue
            picture = _picture(methods, x, target, width=width or WIDTH, title=title)
            with written(output) as temporary:
                picture.savefig(temporary, format=kind, metadata=UNDATED[kind])


def _picture(
    methods: Sequence[Method], x: X, target: float | None, *, width: float, title: str | None
) -> Figure:
    panels = [_draw_profile]
    panels += [_draw_improvement] if len(methods) > 1 else []
    panels += [_draw_target] if target is not None else []
    columns = len(panels) if width / len(panels) >= BESIDE else 1
    rows = len(panels) // columns
    figure = Figure(
        figsize=(width, PANEL_HEIGHT * rows + 0.3 + 0.2 * len(methods)),
        dpi=150,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for draw, ax in zip(panels, axes, strict=True):
        draw(ax, methods)
    if target is not None:
        name, _ = X_AXES[x]
        axes_of_target = figure.axes[len(panels) - 1]
        axes_of_target.set_xlabel(name)
        label_linear_axis(axes_of_target.xaxis)
        axes_of_target.set_title(f"Target {target:g} reached")
    if title:
        figure.suptitle(title)
    lines = [Line2D([], [], color=_color(i), ls=_dash(i)) for i in range(len(methods))]
    names = [f"{method.label} ({len(method.scores)} runs)" for method in methods]
    figure.legend(lines, names, loc="outside lower center", ncols=1 if columns == 1 else 2)
    return figure


def _color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _dash(index: int) -> str:
    return DASHES[index // len(PALETTE) % len(DASHES)]


def _draw_profile(ax: Axes, methods: Sequence[Method]) -> None:
    known = np.concatenate([method.scores[np.isfinite(method.scores)] for method in methods])
    ends = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    margin = 0.05 * (ends[1] - ends[0]) or 0.5
    low, high = ends[0] - margin, ends[1] + margin
    is_minimised = methods[0].sign < 0
    for index, method in enumerate(methods):
        step = performance_profile(method.scores, method.sign)
        first = 0.0 if is_minimised else float(np.isfinite(method.scores).mean())
        _draw_step(ax, step, index, low=low, high=high, first=first)
    ax.set_title("Performance profile")
    ax.set_xlabel(f"threshold: {methods[0].unit}")
    ax.set_ylabel(f"share of runs {'below' if is_minimised else 'above'}")


def _draw_target(ax: Axes, methods: Sequence[Method]) -> None:
    ends = [float(method.times.max()) for method in methods if method.times is not None]
    for index, method in enumerate(methods):
        assert method.times is not None and method.reached is not None
        step = reached_by(method.times, method.reached)
        # where all have reached it, the share stays
        is_complete = len(step.shares) and step.shares[-1] == 1
        own = max(ends) if is_complete else float(method.times.max())
        _draw_step(ax, step, index, low=0.0, high=own, first=0.0)
        censored = method.times[~method.reached]
        ax.plot(censored, _at(step, censored), "|", color=_color(index), ms=8)
    ax.set_xlim(0.0, 1.02 * max(ends))
    ax.set_ylabel("share of runs (| ended without)")


def _at(step: Step, x: Float64) -> Float64:
    """Return the shares at some points."""
    shares = np.concatenate([[0.0], step.shares])
    return np.asarray(shares[np.searchsorted(step.x, x, side="right")], np.float64)


def _draw_step(ax: Axes, step: Step, index: int, *, low: float, high: float, first: float) -> None:
    shares = np.concatenate([[first], step.shares])
    x = np.concatenate([[low], step.x, [high]])
    y = np.concatenate([shares, shares[-1:]])
    ax.step(x, y, where="post", color=_color(index), ls=_dash(index), lw=1.5)
    ax.set_ylim(-0.03, 1.03)


def _draw_improvement(ax: Axes, methods: Sequence[Method]) -> None:
    for row, method in enumerate(methods[1:], 1):
        value, ends = method.better_than(methods[0])
        if ends is not None:
            ax.plot(ends, (row, row), color=_color(row), lw=5, alpha=0.35, solid_capstyle="butt")
        ax.plot([value], [row], "o", color=_color(row), ms=6)
    ax.axvline(0.5, color="#555555", lw=0.8, ls="--")
    ax.set_xlim(-0.03, 1.03)
    ax.set_yticks(range(1, len(methods)), [method.label for method in methods[1:]])
    ax.set_ylim(len(methods) - 0.5, 0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("probability, 95 % bootstrap interval")
    ax.set_title(f"Better than {methods[0].label}")


def _table(methods: Sequence[Method]) -> str:
    """Return what is drawn as CSV: a line for each point."""
    rows: list[Sequence[object]] = [["panel", "method", "x", "y", "low", "high"]]
    for method in methods:
        step = performance_profile(method.scores, method.sign)
        for x, share in zip(step.x.tolist(), step.shares.tolist(), strict=True):
            rows.append(["profile", method.label, x, share, "", ""])
        if method is not methods[0]:
            value, ends = method.better_than(methods[0])
            rows.append(["better", method.label, methods[0].label, value, *(ends or ("", ""))])
        if method.times is not None and method.reached is not None:
            step = reached_by(method.times, method.reached)
            for x, share in zip(step.x.tolist(), step.shares.tolist(), strict=True):
                rows.append(["target", method.label, x, share, "", ""])
    return spreadsheet_text(rows)
