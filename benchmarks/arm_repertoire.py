"""The arm repertoire of QDax, by its MAP-Elites and by `map_elites`, at equal evaluations.

    python -m benchmarks.arm_repertoire --generations 200 --trials 3
    python -m venv qdax && qdax/bin/pip install qdax==0.5.0
    qdax/bin/python -m benchmarks.arm_repertoire --only qdax     # QDax needs packages of its own

The angles of 100 joints are parameters from 0 to 1, the measures are the end of the arm, from 0 to
1, and the value is minus the standard deviation of the parameters. Both have a grid of 100 x 100,
1,024 children per generation, the deviations 0.05 and 0.1 (iso and line), as in the tutorial of
QDax, and random vectors in the first generation. The QD score counts every cell from -1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from statistics import fmean
from typing import Any, NamedTuple

JOINTS, CELLS, CHILDREN = 100, 100, 1024
ISO, LINE, OFFSET = 0.05, 0.1, -1.0


class Score(NamedTuple):
    """The archive of a run."""

    qd_score: float
    coverage: float  # in per cent


Contender = Callable[[int, int], Score]  # of the generations and the seed


def arm(x: Any) -> Mapping[str, Any]:
    """Return the values and ends of arms, of float64[arms, joints]."""
    import numpy as np

    angles = np.cumsum(2 * np.pi * x - np.pi, axis=1)
    ends = np.stack([np.cos(angles).mean(axis=1), np.sin(angles).mean(axis=1)], axis=1)
    return {"value": -x.std(axis=1), "measures": ends / 2 + 0.5}


def ours(generations: int, seed: int) -> Score:
    """Run `map_elites`."""
    import hpc_es

    config = {
        "seed": seed,
        "task": {
            "kind": "function",
            "function": "benchmarks.arm_repertoire:arm",
            "dimension": JOINTS,
            "initial": "random",
            "bounds": {"low": 0, "high": 1, "keep": "clip"},
            "batch": 128,
            "goal": "maximise",
            "record_evaluations": False,
            "measures": {"x": [0, 1], "y": [0, 1]},
        },
        "algorithm": {
            "kind": "map_elites",
            "population_size": CHILDREN,
            "sigma": ISO,
            "sigma_line": LINE,
            "archive": {"cells": [CELLS, CELLS], "offset": OFFSET},
        },
        "evaluation": {"interval": 0},
        "report": {"plot_interval_seconds": 0},
        "stop": {"generations": generations},
    }
    with tempfile.TemporaryDirectory() as directory:
        *_, last = hpc_es.train(config, directory)
    return Score(last["qd_score"], 100 * last["coverage"])


def qdax(generations: int, seed: int) -> Score:
    """Run the MAP-Elites of QDax."""
    from functools import partial

    import jax
    from qdax.core.containers.mapelites_repertoire import compute_euclidean_centroids
    from qdax.core.emitters.mutation_operators import isoline_variation
    from qdax.core.emitters.standard_emitters import MixingEmitter
    from qdax.core.map_elites import MAPElites
    from qdax.tasks.arm import arm_scoring_function
    from qdax.utils.metrics import default_qd_metrics

    variation = partial(isoline_variation, iso_sigma=ISO, line_sigma=LINE, minval=0, maxval=1)
    emitter = MixingEmitter(
        mutation_fn=None, variation_fn=variation, variation_percentage=1.0, batch_size=CHILDREN
    )
    metrics = partial(default_qd_metrics, qd_offset=-OFFSET)
    search = MAPElites(arm_scoring_function, emitter, metrics)
    key, first, second = jax.random.split(jax.random.key(seed), 3)
    vectors = jax.random.uniform(first, (CHILDREN, JOINTS))
    cells = compute_euclidean_centroids((CELLS, CELLS), 0.0, 1.0)
    repertoire, state, found = search.init(vectors, cells, second)
    update = jax.jit(search.update)
    for _ in range(generations - 1):
        key, own = jax.random.split(key)
        repertoire, state, found = update(repertoire, state, own)
    return Score(float(found["qd_score"]), float(found["coverage"]))


CONTENDERS: Mapping[str, tuple[Contender, str]] = {
    "hpc_es": (ours, "numpy"),
    "qdax": (qdax, "qdax"),
}


def print_table(contenders: Mapping[str, Contender], generations: int, trials: int) -> None:
    """Run contenders with the seeds 1 to `trials`, and print a table as they finish."""
    print("| contender | trials | QD score | coverage |\n|---|---|---|---|", flush=True)
    for name, run in contenders.items():
        found = [run(generations, seed) for seed in range(1, trials + 1)]
        scores = [score.qd_score for score in found]
        cells = f"{fmean(scores):,.0f} ({min(scores):,.0f} to {max(scores):,.0f})"
        coverage = f"{fmean(score.coverage for score in found):.1f} %"
        print(f"| {name} | {len(found)} | {cells} | {coverage} |", flush=True)


def main() -> int:
    """Run the contenders that are installed, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm_repertoire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--generations", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    options = parser.parse_args()
    installed = {
        name: CONTENDERS[name][0]
        for name in options.only
        if find_spec(CONTENDERS[name][1]) is not None
    }
    print_table(installed, options.generations, options.trials)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
