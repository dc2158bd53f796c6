"""Programs that use hpc_es as a library, for `same_bits`: `python same_bits_programs.py NAME
OUTPUT`, under mpiexec.

Each writes OUTPUT/record.json: all candidates and results as hexadecimal floats.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hpc_es

STRATEGIES = ("ars", "cma_es", "cr_fm_nes", "deep_ga", "es", "pgpe", "sep_cma_es", "snes", "xnes")
SIZE = 5
RECORD = "record.json"


def cost(x: Any) -> float:
    """Rosenbrock's function of x, float64[SIZE]; NaN in part of the space,
    like failed evaluations.
    """
    if x[0] > 1.2:
        return float("nan")
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def ask_and_tell() -> dict[str, Any]:
    """Run six generations of each strategy, which is saved and loaded after three."""
    record = {}
    for kind in STRATEGIES:
        strategy = hpc_es.Strategy(
            kind, x0=np.linspace(0.1, 0.5, SIZE), sigma0=0.3, seed=3, population_size=8
        )
        candidates = []
        for number in range(6):
            x = strategy.ask()
            candidates.append(_hexadecimal(x))
            strategy.tell([cost(row) for row in x])
            if number == 2:
                with tempfile.TemporaryDirectory() as directory:
                    strategy.save(Path(directory) / "state.h5")
                    strategy = hpc_es.Strategy.load(Path(directory) / "state.h5")
        best = strategy.best
        assert best is not None
        result = [_hexadecimal(best.x), best.f.hex(), strategy.generation, strategy.evaluations]
        record[kind] = [candidates, _hexadecimal(strategy.theta), result]
    return record


def minimize() -> dict[str, Any]:
    """Minimise with each strategy, with bounds or a region, and in batches."""
    record = {}
    for kind in STRATEGIES:
        for name, options in {
            "bounds": {"bounds": (-0.5, 1.5)},
            "region": {"region": (np.full(SIZE, -1.0), 1.0)},
        }.items():
            start = {"x0": np.zeros(SIZE)} if name == "bounds" else {}
            record[f"{kind} {name}"] = _minimum(cost, kind, **start, **options)
    record["batch"] = _minimum(
        lambda x: [cost(row) for row in x], "cma_es", x0=np.zeros(SIZE), batch=3
    )
    return record


def _minimum(function: Any, kind: str, **options: Any) -> list[Any]:
    result = hpc_es.minimize(
        function, sigma0=0.3, algorithm=kind, max_evaluations=96, population_size=8, **options
    )
    return [
        _hexadecimal(result.x),
        result.f.hex(),
        result.evaluations,
        result.generations,
        result.reason,
    ]


def _hexadecimal(values: Any) -> list[str]:
    return [float(value).hex() for value in np.asarray(values).ravel()]


PROGRAMS = {"ask_and_tell": ask_and_tell, "minimize": minimize}

if __name__ == "__main__":
    output = Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(PROGRAMS[sys.argv[1]]())
    # every rank has the same result
    path = output / f"{RECORD}.{np.random.default_rng().integers(1 << 60)}"
    path.write_text(text)
    path.rename(output / RECORD)
