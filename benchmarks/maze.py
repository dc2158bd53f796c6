"""The deceptive maze: generations to the goal by novelty search and an evolution strategy, and
their best paths.

    python -m benchmarks.maze --png docs/maze.png [--seeds 5]

Runs five seeds of `es`, `nsr` and `nsra`; the picture shows the first seeds. Results depend on the
seeds only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hpc_es
from benchmarks.jobs import ROOT
from hpc_es.config.loading import load
from hpc_es.tasks.deceptive_maze import BOTTOM, GOAL, GOAL_RADIUS, ROOF, SIDE, START

SEARCHES: dict[str, tuple[str, tuple[str, ...]]] = {
    "es": ("es_maze", ()),
    "nsr": ("novelty_maze", ()),
    "nsra": ("novelty_maze", ("algorithm.mode=nsra", "algorithm.patience=10")),
}
SOLVED = 1.3


def main() -> int:
    """Print one row per search, and draw the first seeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maze", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--png", type=Path, help="draw the first seeds, such as docs/maze.png")
    options = parser.parse_args()
    drawn: dict[str, Any] = {}
    print("| search | generations to the goal, by seed |\n|---|---|")
    for name, (config, overrides) in SEARCHES.items():
        results = [trained(config, overrides, seed) for seed in range(1, options.seeds + 1)]
        drawn[name] = results[0]
        print(f"| {name} | {', '.join(map(text, results))} |", flush=True)
    if options.png:
        draw(drawn, options.png)
    return 0


def text(result: dict[str, Any]) -> str:
    """Return the generations of a search that reached the goal, else its best return."""
    return (
        str(result["generations"])
        if result["best"] >= SOLVED
        else f"{result['best']:.2f} at the end"
    )


def trained(config: str, overrides: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Run a search; return its generations, best return and the path of the best policy."""
    words = [*overrides, f"seed={seed}", "report.plot_interval_seconds=0", "checkpoint.interval=0"]
    with (
        tempfile.TemporaryDirectory() as directory,
        hpc_es.train(load(ROOT / f"configs/{config}.yaml", words), directory) as run,
    ):
        best = -np.inf
        for row in run:
            best = max(best, row["evaluation_return_mean"] or -np.inf)
        generations = run.state.generation
        path = walked(hpc_es.load_policy(Path(directory)))
    return {"generations": generations, "best": best, "path": path}


def walked(policy: Any) -> list[tuple[float, float]]:
    """Return the positions in an episode."""
    env = gymnasium.make("hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0")
    observation, _ = env.reset(seed=0)
    positions, is_over = [tuple(observation.tolist())], False
    while not is_over:
        observation, _, terminated, truncated, _ = env.step(policy(observation))
        positions.append(tuple(observation.tolist()))
        is_over = terminated or truncated
    return positions


def draw(drawn: dict[str, Any], path: Path) -> None:
    """Draw one panel per search."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for panel, (name, result) in zip(figure.subplots(1, len(drawn)), drawn.items(), strict=True):
        panel.plot([-SIDE, -SIDE, SIDE, SIDE], [BOTTOM, ROOF, ROOF, BOTTOM], color="black", lw=2)
        panel.add_patch(Circle(GOAL, GOAL_RADIUS, color="tab:green", alpha=0.5))
        panel.plot(*START, "o", color="black")
        panel.plot(*np.array(result["path"]).T, ".-", color="tab:blue")
        end = "the goal" if result["best"] >= SOLVED else f"{result['best']:.2f}"
        panel.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=[], yticks=[])
        panel.set_title(f"{name}: {end}, {result['generations']} generations")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
