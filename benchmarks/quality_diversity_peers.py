"""One trial of pyribs for `benchmarks.quality_diversity`, in a process of its own.

    python -m benchmarks.quality_diversity_peers sphere pyribs_cma_mae 1 10000 2 result.json

`pyribs_...` uses the CMA-ES of pyribs, `pycma_...` that of pycma. Slow functions are evaluated by a
pool of as many processes as the other side has ranks.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT
from benchmarks.quality_diversity import DIMENSIONS, HALF, SIGMA, SLOW, Score, Trial
from benchmarks.slow_functions import sphere_1ms

EMITTERS, BATCH = 15, 36
RANKERS = {"cma_me_imp_mu": "2imp", "cma_me_rd_mu": "2rd", "cma_mae": "imp"}
RANGES = {"arm": [(-1.0, 1.0)] * 2}


def scheduler_of(name: str, domain: str, seed: int) -> tuple[Any, Any]:
    """Return the scheduler of an algorithm, and the archive of its results."""
    from ribs.archives import GridArchive
    from ribs.emitters import EvolutionStrategyEmitter, GaussianEmitter, IsoLineEmitter
    from ribs.schedulers import Scheduler

    library, _, algorithm = name.partition("_")
    common = {
        "solution_dim": DIMENSIONS,
        "dims": (100, 100),
        "ranges": RANGES.get(domain, [(-HALF, HALF)] * 2),
        "seed": seed,
    }
    is_soft = algorithm == "cma_mae"
    soft = {"learning_rate": 0.01, "threshold_min": 0.0} if is_soft else {}
    archive = GridArchive(**common, **soft)
    result = GridArchive(**common) if is_soft else None
    x0 = np.zeros(DIMENSIONS)
    emitters: list[Any]
    if algorithm == "map_elites":
        emitters = [GaussianEmitter(archive, x0=x0, sigma=SIGMA[domain], batch_size=540, seed=seed)]
    elif algorithm == "map_elites_line":
        steps = {"iso_sigma": SIGMA[domain], "line_sigma": 0.2}
        emitters = [IsoLineEmitter(archive, x0=x0, **steps, batch_size=540, seed=seed)]
    else:
        emitters = [
            EvolutionStrategyEmitter(
                archive,
                x0=x0,
                sigma0=SIGMA[domain],
                ranker=RANKERS[algorithm],
                selection_rule="mu",
                restart_rule="basic" if is_soft else "no_improvement",
                es="pycma_es" if library == "pycma" else "cma_es",
                batch_size=BATCH,
                seed=1000 * seed + number,
            )
            for number in range(EMITTERS)
        ]
    return Scheduler(
        archive, emitters, result_archive=result
    ), archive if result is None else result


def evaluate_batches(domain: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return a function of float64[solutions, parameters]."""
    sys.path.insert(0, str(ROOT / "configs"))
    import archive_functions

    function: Callable[[Any], Mapping[str, Any]] = vars(archive_functions)[domain]
    return function


def evaluate_by(pool: Pool) -> Callable[[Any], Mapping[str, Any]]:
    """Return a function of float64[solutions, parameters], whose rows processes evaluate."""

    def evaluate(solutions: Any) -> Mapping[str, Any]:
        results = pool.map(sphere_1ms, solutions)
        return {name: np.array([one[name] for one in results]) for name in ("value", "measures")}

    return evaluate


def run(trial: Trial, evaluate: Callable[[Any], Mapping[str, Any]]) -> Score:
    """Run a trial."""
    scheduler, result = scheduler_of(trial.algorithm, trial.domain, trial.seed)
    for generation in range(trial.generations):
        evaluated = evaluate(scheduler.ask())
        scheduler.tell(evaluated["value"], evaluated["measures"])
        if generation == trial.untimed:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    return Score(
        float(result.stats.qd_score),
        100 * float(result.stats.coverage),
        1e3 * seconds / (trial.generations - 1 - trial.untimed),
    )


def main() -> int:
    """Run a trial, and write its score."""
    domain, name, *numbers, file = sys.argv[1:]
    trial = Trial(domain, name, *map(int, numbers))
    if domain in SLOW:
        with multiprocessing.get_context("fork").Pool(trial.ranks) as pool:
            score = run(trial, evaluate_by(pool))
    else:
        score = run(trial, evaluate_batches(domain))
    Path(file).write_text(json.dumps(score._asdict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
