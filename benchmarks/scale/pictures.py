"""Pictures: measured and predicted generations; efficiency on clusters, with the speed-up published by OpenAI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PUBLISHED = ((18, 657.0), (1_440, 10.0))  # cores and minutes to solve Humanoid (Salimans et al. 2017, arXiv:1703.03864)


def draw(tables: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw both panels."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = tables["generations"]
    ranks = [row["ranks"] for row in rows]
    left.loglog(ranks, [row["seconds"] for row in rows], "o", color="tab:blue", label="measured here, 2 cores")
    left.loglog(ranks, [row["predicted"] for row in rows], "--", color="black", lw=1, label="simulated")
    left.set(
        xlabel="ranks", ylabel="seconds a generation of 128 episodes", title="timer with Humanoid's first episodes"
    )
    left.set_xticks(ranks, list(map(str, ranks)))
    left.legend(frameon=False)
    (few, long), (many, short) = PUBLISHED
    right.loglog([few, many], [1, long / short], "s-", color="tab:gray", label="OpenAI, published: time to solve")
    right.loglog([few, 10_000], [1, 10_000 / few], ":", color="black", lw=1, label="nothing lost")
    for which, style in (("early", "o-"), ("between", "v-"), ("later", "^-")):
        best = _fastest([row for row in tables["far"] if row["lengths"] == which])
        if best:
            base = best[few]
            speed = [ranks / few * row["efficiency"] / base["efficiency"] for ranks, row in best.items()]
            right.loglog(list(best), speed, style, label=f"hpc_es, simulated: {which} episodes")
    right.set(xlabel="ranks", ylabel="speed-up over 18", title="Humanoid, 20 jobs a rank")
    right.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _fastest(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the row of the largest population by number of ranks."""
    return {row["ranks"]: row for row in sorted(rows, key=lambda row: (row["ranks"], row["population"]))}
