"""Env-steps/s of two evaluating ranks over one, on two free cores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import ROOT, train

REPEATS = 3


def run() -> list[dict[str, Any]]:
    """Alternate one rank and two."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as directory:
        for repeat in range(REPEATS):
            for ranks, found in rates.items():
                output = Path(directory) / f"{ranks}-{repeat}"
                config = ROOT / "configs/es_halfcheetah.yaml"
                rows = train(ranks, config, output, "stop={generations: 4}", "evaluation.interval=0")[1:]
                steps = sum(row["timesteps_this_generation"] for row in rows)
                found.append(steps / sum(row["seconds_this_generation"] for row in rows))
    ratio = median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    row = {"env": "HalfCheetah-v5", "speedup": ratio, "target": 1.85, "met": ratio >= 1.85}
    return [{**row, "one_rank": median(rates[1]), "two_ranks": median(rates[2])}]
