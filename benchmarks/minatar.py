"""Four games of MinAtar by an evolution strategy, three seeds each: runs, a CSV file of
evaluations, and a picture.

    python -m benchmarks.minatar --games Asterix Breakout Freeway SpaceInvaders --seeds 1 2 3
    python -m benchmarks.minatar --seeds --csv docs/minatar.csv --png docs/minatar.png

The first command trains those of the runs that are not finished in the folder of `--runs`, one
after the other on one core. With `--csv`, evaluations of all runs in the folder replace those of
the same game and seed in the file; `--png` draws the file. Needs the extra `jax`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT, command, metrics

CONFIG = ROOT / "configs" / "es_minatar_breakout.yaml"
GAMES = {  # overrides
    "Asterix": (),
    "Breakout": (),
    "Freeway": ("task.episodes_per_job=1", "evaluation.interval=5"),  # episodes of 2,500 steps
    "SpaceInvaders": (),
}
PPO = {"Asterix": 15.4, "Breakout": 23.5, "Freeway": 58.8, "SpaceInvaders": 136.5}  # gymnax-blines
COLUMNS = (
    "game",
    "seed",
    "generation",
    "timesteps",
    "return_mean",
    "return_std",
    "population_return_mean",
)

Row = dict[str, Any]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.minatar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[1, 2, 3], help="none: train nothing"
    )
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "minatar", help="folder of the runs"
    )
    parser.add_argument("--csv", type=Path, help="file of evaluations to update")
    parser.add_argument("--png", type=Path, help="picture of this file")
    options = parser.parse_args()
    for seed in options.seeds:
        for game in options.games:
            train(game, seed, options.runs / game / str(seed))
    if options.csv:
        update(options.csv, options.runs)
        if options.png:
            draw(read(options.csv), options.png)


def train(game: str, seed: int, run: Path) -> None:
    """Train a game, unless the run is finished; an interrupted run continues."""
    if not (run / "result.json").exists():
        name = f"es_minatar_{game.lower()}"
        overrides = (
            f"seed={seed}",
            f"name={name}",
            f"task.env_id=gymnax:{game}-MinAtar",
            *GAMES[game],
        )
        subprocess.run(command(1, CONFIG, run, *overrides), cwd=ROOT, check=True)


def update(path: Path, runs: Path) -> None:
    """Replace the rows of the games and seeds that are in the folder of runs."""
    found = {
        (run.parent.name, run.name): list(evaluations(run))
        for run in sorted(runs.glob("*/*"))
        if run.is_dir()
    }
    kept = [row for row in read(path) if (row["game"], row["seed"]) not in found]
    rows = sorted([*kept, *(row for rows in found.values() for row in rows)], key=order)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def order(row: Row) -> tuple[str, int, int]:
    """Return the key by which rows are sorted."""
    return row["game"], int(row["seed"]), int(row["generation"])


def read(path: Path) -> list[Row]:
    """Return the rows of the CSV file, with all values as text; none if it does not exist."""
    return (
        list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    )


def evaluations(run: Path) -> Iterator[Row]:
    """Yield a row for each evaluation of a run, the last of which is in result.json."""
    identity = {"game": run.parent.name, "seed": run.name}
    for row in metrics(run):
        if row.get("evaluation_episodes"):
            yield {
                **identity,
                "generation": row["generation"],
                "timesteps": row["timesteps_total"],
                "return_mean": round(row["evaluation_return_mean"], 2),
                "return_std": round(row["evaluation_return_std"], 2),
                "population_return_mean": round(row["return_mean"], 2),
            }
    if (run / "result.json").exists():
        result = json.loads((run / "result.json").read_text())
        yield {
            **identity,
            "generation": result["generations"],
            "timesteps": result["timesteps"],
            "return_mean": round(result["final_return"], 2),
            "return_std": round(result["final_return_std"], 2),
        }


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw one panel per game: the evaluations of each seed, and the published return of PPO."""
    from matplotlib.figure import Figure

    games = [game for game in GAMES if any(row["game"] == game for row in rows)]
    figure = Figure(figsize=(3.4 * len(games), 3.0), layout="constrained")
    for ax, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games, strict=True):
        ax.axhline(PPO[game], color="0.5", linestyle="--", lw=1)
        for index, seed in enumerate(sorted({row["seed"] for row in rows if row["game"] == game})):
            x, y = zip(*points(rows, game, seed), strict=True)
            ax.plot(x, y, color=f"C{index}", lw=1.3, label=f"seed {seed}")
        ax.set(title=game, xlabel="timesteps (million)")
        ax.grid(alpha=0.3)
        ax.legend(fontsize="x-small")
    figure.get_axes()[0].set_ylabel("return of theta; dashed: PPO")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def points(rows: Iterable[Row], game: str, seed: str) -> list[tuple[float, float]]:
    """Return million timesteps and returns of a run."""
    chosen = (row for row in rows if (row["game"], row["seed"]) == (game, seed))
    return [(int(row["timesteps"]) / 1e6, float(row["return_mean"])) for row in chosen]


if __name__ == "__main__":
    main()
