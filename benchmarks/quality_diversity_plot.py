"""Picture of the QD scores of all trials, one panel per domain, beside published means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

# by library; a row of dots beside the others
SIDES = {"hpc_es": (-0.22, "C0"), "pyribs": (0.0, "C1"), "pycma": (0.22, "C2")}

Domain = Mapping[str, Sequence[float]]  # QD scores by algorithm, with the library in front


def draw(
    domains: Mapping[str, Domain],
    published: Mapping[str, Mapping[str, tuple[float, float]]],
    path: Path,
) -> None:
    """Draw a dot for each trial, and a bar for each published mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4 * len(domains)), layout="constrained")
    axes = figure.subplots(len(domains), 1, squeeze=False).ravel()
    for ax, (domain, found) in zip(axes, domains.items(), strict=True):
        names = list(dict.fromkeys(map(without_library, found)))
        for name, scores in found.items():
            position = names.index(without_library(name))
            library = name.partition("_")[0]
            side, color = SIDES.get(library, SIDES["hpc_es"])
            x = np.full(len(scores), position + side)
            ax.plot(x, np.array(scores) / 1e3, "o", color=color, ms=4, alpha=0.6, mew=0)
        for name, (score, _) in published[domain].items():
            if name in names:
                at = names.index(name)
                ax.hlines(score / 1e3, at - 0.4, at + 0.4, color="0.4", lw=1.2)
        ax.set_title(domain, fontsize="medium")
        ax.set_ylabel("QD score (thousands)")
        ax.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize="small")
        ax.grid(axis="y", alpha=0.3)
    handles = [
        axes[0].plot([], [], "o", color=color, ms=4, label=library)[0]
        for library, (_, color) in SIDES.items()
        if library == "hpc_es" or any(f"{library}_" in name for d in domains.values() for name in d)
    ]
    handles += axes[0].plot([], [], color="0.4", lw=1.2, label="published mean")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def without_library(name: str) -> str:
    """Return the name of an algorithm: map_elites for pyribs_map_elites."""
    library, _, rest = name.partition("_")
    return rest if library in SIDES else name
