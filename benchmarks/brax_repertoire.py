"""A uni-directional Brax task of QDax, by its MAP-Elites and by `map_elites`, at equal evaluations.

    python -m venv qdax && qdax/bin/pip install qdax==0.5.0 -e '.[mpi,jax]'
    qdax/bin/python -m benchmarks.brax_repertoire --generations 100 --trials 3

Walker2d: the value is the return of an episode of 250 steps from one state, the measures are the
share of time that each foot touches the ground. Both sides score networks of 64 and 64 units with
the function of QDax, begin with parameters from -0.3 to 0.3, and have a grid of 50 x 50, 128
children per generation, the deviations 0.005 and 0.05 (iso and line), as in the examples of QDax.
The QD score counts from the lowest reward of QDax, times the steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arm_repertoire import Score, print_table
from hpc_es.core.data import Float64

NAME, STEPS, CELLS, CHILDREN, HIDDEN = "walker2d_uni", 250, 50, 128, (64, 64)
ISO, LINE, FIRST = 0.005, 0.05, 0.3


class Domain(NamedTuple):
    """The task: how networks are scored, in trees of parameters."""

    score: Any  # (tree, key) -> values, measures, others
    size: int  # parameters of a network
    trees: Any  # of float32[networks, parameters]
    worst: float


@lru_cache(maxsize=1)
def domain() -> Domain:
    """Return the task."""
    import jax
    from jax.flatten_util import ravel_pytree
    from qdax.tasks.brax import v2
    from qdax.tasks.brax.v2.env_creators import create_default_brax_task_components

    environment, network, score = create_default_brax_task_components(
        NAME, jax.random.key(1), STEPS, HIDDEN, deterministic=True
    )
    one = network.init(jax.random.key(0), np.zeros((environment.observation_size,)))
    vector, unravel = ravel_pytree(one)
    return Domain(score, vector.size, jax.vmap(unravel), -v2.reward_offset[NAME] * STEPS)


def walker(x: Float64) -> Mapping[str, Float64]:
    """Return the values and measures of networks, of float64[networks, parameters]."""
    import jax

    task = domain()
    padded = np.zeros((CHILDREN, x.shape[1]), np.float32)
    padded[: len(x)] = x
    values, measures, _ = task.score(task.trees(padded), jax.random.key(0))
    return {
        "value": np.asarray(values[: len(x)], np.float64),
        "measures": np.asarray(measures[: len(x)], np.float64),
    }


def ours(generations: int, seed: int) -> Score:
    """Run `map_elites`."""
    import hpc_es

    task = domain()
    config = {
        "seed": seed,
        "task": {
            "kind": "function",
            "function": "benchmarks.brax_repertoire:walker",
            "dimension": task.size,
            "initial": "random",
            "initial_region": {"low": -FIRST, "high": FIRST},
            "batch": CHILDREN,
            "goal": "maximise",
            "record_evaluations": False,
            "measures": {"right": [0, 1], "left": [0, 1]},
        },
        "algorithm": {
            "kind": "map_elites",
            "population_size": CHILDREN,
            "sigma": ISO,
            "sigma_line": LINE,
            "archive": {"cells": [CELLS, CELLS], "offset": task.worst},
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
    import jax
    from qdax.core.containers.mapelites_repertoire import compute_euclidean_centroids
    from qdax.core.emitters.mutation_operators import isoline_variation
    from qdax.core.emitters.standard_emitters import MixingEmitter
    from qdax.core.map_elites import MAPElites
    from qdax.utils.metrics import default_qd_metrics

    task = domain()
    emitter = MixingEmitter(
        mutation_fn=None,
        variation_fn=partial(isoline_variation, iso_sigma=ISO, line_sigma=LINE),
        variation_percentage=1.0,
        batch_size=CHILDREN,
    )
    search = MAPElites(task.score, emitter, partial(default_qd_metrics, qd_offset=-task.worst))
    cells = compute_euclidean_centroids((CELLS, CELLS), 0.0, 1.0)
    key, first, own = jax.random.split(jax.random.key(seed), 3)
    vectors = jax.random.uniform(first, (CHILDREN, task.size), minval=-FIRST, maxval=FIRST)
    repertoire, state, found = search.init(task.trees(vectors), cells, own)
    update = jax.jit(search.update)
    for _ in range(generations - 1):
        key, own = jax.random.split(key)
        repertoire, state, found = update(repertoire, state, own)
    return Score(float(found["qd_score"]), float(found["coverage"]))


def main() -> int:
    """Run both, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.brax_repertoire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    print_table({"hpc_es": ours, "qdax": qdax}, options.generations, options.trials)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
