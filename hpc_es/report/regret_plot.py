"""The picture of `hpc-es bandit-report`: cumulative expected regret over trials, a panel for each distribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpc_es.core.errors import UserError
from hpc_es.report.plot import DASHES, PALETTE, STYLE, SUFFIXES, UNDATED
from hpc_es.report.regret import Report, Score
from hpc_es.storage.files import written

# Their colours, in this order, are the same in all pictures.
REFERENCES = (
    *("bayes_optimal", "thompson", "ucb", "posterior_greedy", "epsilon_greedy", "ucb1", "random"),
    "rescorla_wagner",
)
HEADROOM = 1.3  # above the last but worst of the references: random arms may leave the picture


def check(output: Path) -> None:
    """UserError unless the suffix is one that can be drawn."""
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")


def plot(reports: Sequence[Report], output: Path) -> None:
    """Draw them into a PNG, PDF or SVG; the file is replaced as a whole or not at all."""
    check(output)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(reports).savefig(temporary, format=kind, metadata=UNDATED[kind])


def figure(reports: Sequence[Report]) -> Figure:
    """Learned agents are bold and shaded by their standard error, references thin and dashed."""
    result = Figure(figsize=(max(2.6 * len(reports), 6.0), 3.6), dpi=150, layout="constrained")
    axes = result.subplots(1, len(reports), squeeze=False)[0]
    scores = [each for found in reports for each in found.scores]
    learned = list(dict.fromkeys(each.agent for each in scores if each.learned))
    names = learned + list(dict.fromkeys(each.agent for each in scores if not each.learned))
    for ax, found in zip(axes, reports, strict=True):
        for each in found.scores:
            _draw(ax, each, learned.index(each.agent) if each.learned else REFERENCES.index(each.agent))
        ax.set_title(f"{found.distribution} bandits")
        ax.set_xlabel("trials")
        ax.set_xlim(0, found.trials)
        ax.set_ylim(0, _top(found))
    axes[0].set_ylabel("cumulative expected regret")
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    result.legend(handles=[handles[name] for name in names], loc="outside right center", fontsize=8)
    return result


def _draw(ax: Axes, each: Score, index: int) -> None:
    color = PALETTE[index % len(PALETTE)]
    dash = DASHES[0 if each.learned else 1 + index // len(PALETTE)]
    trials = np.arange(len(each.curve) + 1)
    curve, error = (np.append(0.0, part) for part in (each.curve, each.error))
    ax.plot(trials, curve, dash, color=color, lw=2.2 if each.learned else 1.0, label=each.agent)
    if each.learned:
        ax.fill_between(trials, curve - error, curve + error, color=color, alpha=0.2, lw=0)


def _top(found: Report) -> float:
    ends = sorted(float(each.curve[-1]) for each in found.scores if each.learned or each.agent != "random")
    return max(HEADROOM * ends[-1], 1e-3)
