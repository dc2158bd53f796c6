"""One trial of pyribs for `benchmarks.quality_diversity`, in a process of its own.

    python -m benchmarks.quality_diversity_peers sphere pyribs_cma_mae 1 10000 2 result.json

`pyribs_...` uses the CMA-ES of pyribs, `pycma_...` that of pycma; `pyribs_dms` needs PyTorch. Slow
functions are evaluated by a pool of as many processes as the other side has ranks.
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
RANKERS = {"cma_me_imp_mu": "2imp", "cma_me_rd_mu": "2rd", "cma_mae": "imp", "dms": "imp"}
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
    result = GridArchive(**common)
    archive = elites = result
    if algorithm == "cma_mae":
        archive = elites = GridArchive(**common, learning_rate=0.01, threshold_min=0.0)
    elif algorithm == "dms":
        archive = discount_archive(result, seed)
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
                elites,
                x0=x0,
                sigma0=SIGMA[domain],
                ranker=RANKERS[algorithm],
                selection_rule="mu",
                restart_rule="no_improvement" if archive is result else "basic",
                es="pycma_es" if library == "pycma" else "cma_es",
                batch_size=BATCH,
                seed=1000 * seed + number,
            )
            for number in range(EMITTERS)
        ]
    passive = None if archive is result else result
    return Scheduler(archive, emitters, result_archive=passive), result


def discount_archive(result: Any, seed: int) -> Any:
    """Return the archive of Discount Model Search, with the constants of its paper."""
    import torch
    from ribs.archives import DiscountArchive
    from ribs.discount_models import MLP, DiscountModelManager

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = MLP([(2, 128), (128, 128), (128, 1)], torch.nn.ReLU)
    manager = DiscountModelManager(
        model,
        torch.optim.Adam(model.parameters(), lr=0.001),
        torch.device("cpu"),
        train_epochs=5,
        train_cutoff_loss=0.05,
        train_batch_size=32,
        normalize_measures="negative_one_one",
        measures_low=result.lower_bounds,
        measures_high=result.upper_bounds,
        normalize_discount="zero_one",
        discount_low=0.0,
        discount_high=100.0,
    )
    archive = DiscountArchive(
        solution_dim=DIMENSIONS,
        measure_dim=2,
        learning_rate=0.1,
        threshold_min=0.0,
        discount_model_manager=manager,
        result_archive=result,
        init_train_points=1000,
        empty_points=100,
        seed=seed,
    )
    archive.init_discount_model()
    return archive


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
        if trial.algorithm == "pyribs_dms":
            scheduler.archive.train_discount_model()
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
