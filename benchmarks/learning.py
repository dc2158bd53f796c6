"""What the configs learn: seeds of each are trained, then evaluated over 100 episodes; prints the README's table.

    python -m benchmarks.learning es_cartpole es_pendulum --seeds 5 --ranks 2 --out runs/learning

Runs carry on where they stopped, so the command may be interrupted and repeated; `--table` only prints what is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.jobs import ROOT, command

TARGETS = {
    "es_cartpole": 475.0,
    "es_lunarlander_continuous": 250.0,
    "es_pendulum": -250.0,
    "es_halfcheetah": 3500.0,
    "es_swimmer": 300.0,
}
EPISODES, SEED = 100, 1000


def main() -> int:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="configs, without .yaml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/learning")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    print("| config | seeds | return of 100 episodes, median (each seed) | target | timesteps | minutes |")
    print("|---|---|---|---|---|---|")
    for name in options.names:
        found = []
        for seed in range(1, options.seeds + 1):
            run = options.out / f"{name}-{seed}"
            if not options.table:
                train(name, seed, options.ranks, run)
            if (run / "eval.json").exists():
                found.append(json.loads((run / "eval.json").read_text()))
        if found:
            print(line(name, found), flush=True)
    return 0


def train(name: str, seed: int, ranks: int, run: Path) -> None:
    """Train to the end and keep the evaluation beside the run."""
    job = command(ranks, ROOT / f"configs/{name}.yaml", run, f"seed={seed}", f"name={name}")
    subprocess.run(job, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    asked = ["-m", "hpc_es", "eval", str(run), "--episodes", str(EPISODES), "--seed", str(SEED), "--json"]
    shown = subprocess.run([sys.executable, *asked], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    totals = {"timesteps": rows[-1]["timesteps_total"], "seconds": rows[-1]["seconds_total"]}
    (run / "eval.json").write_text(json.dumps({**json.loads(shown), **totals}))


def line(name: str, found: list[dict[str, Any]]) -> str:
    """A row of the table."""
    returns = [each["return_mean"] for each in found]
    each = ", ".join(f"{value:.0f}" for value in returns)
    target = f"{TARGETS[name]:.0f}" if name in TARGETS else ""
    timesteps = f"{mean(e['timesteps'] for e in found) / 1e6:.2f} M"
    minutes = f"{mean(e['seconds'] for e in found) / 60:.1f}"
    return f"| {name} | {len(found)} | {median(returns):.0f} ({each}) | {target} | {timesteps} | {minutes} |"


if __name__ == "__main__":
    sys.exit(main())
