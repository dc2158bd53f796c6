"""Drift of weights that are perturbed and restored in place, as public tools for large models do.

    python -m benchmarks.drift [--iterations 20] [--model pretrained.npz --sigma 0.01 --alpha 0.008
    --population 64]

An iteration adds sigma * noise to the weights and subtracts it again for each member of the
population, and then adds alpha / population * sum of z * noise, with rewards z of mean 0 and
variance 1. Restoring does not give the old weights back, since both sums are rounded. The drift is
the root mean square of this change over that of the update step. The default is the published
setting of arXiv:2509.24372 for weights N(0, 0.02^2), with random rewards. With a file of
examples/sorting_jax/sorting_model.py the rewards are exact matches. "master" is the way of hpc_es:
candidates are computed from float32 weights that nothing is subtracted from, and rounded then. It
needs the extra `jax`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.jobs import ROOT

SIZE, SPREAD = 100_000, 0.02  # of random weights
# of the sorting model, for the rewards of an iteration and for the result
QUESTIONS, HELD_OUT = 128, 2048
METHODS: Mapping[str, tuple[Any, Any]] = {  # dtypes of the weights in memory, and of the noise
    "bf16 in place": (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    "bf16 in place, noise float32": (ml_dtypes.bfloat16, np.float32),
    "float32 in place": (np.float32, np.float32),
    "master": (np.float32, np.float32),
}
Reward = Callable[[Any, int], float]  # of weights in an iteration


@dataclasses.dataclass
class Drift:
    """Result of a method: drift over the update step of each iteration,
    and the weights at the end.
    """

    drifts: list[float]
    steps: list[float]  # root mean squares of update steps
    changed: float  # share of weights that the first iteration does not restore
    weights: Any


def rms(values: Any) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def noise_of(iteration: int, member: int, size: int) -> Any:
    """Return the perturbation of a member, float32[size],
    which public tools also draw from a seed.
    """
    return np.random.default_rng((iteration, member)).standard_normal(size, np.float32)


def added(weights: Any, change: Any, noise_dtype: Any) -> Any:
    """Return the sum in the dtype of the weights; the change is rounded to `noise_dtype` before."""
    exact = weights.astype(np.float32) + change.astype(noise_dtype).astype(np.float32)
    return exact.astype(weights.dtype)


def follow(method: str, initial: Any, reward: Reward | None, options: argparse.Namespace) -> Drift:
    """Return the result of a method from initial weights, float32[size];
    rewards are random without a function.
    """
    dtype, noise_dtype = METHODS[method]
    weights, population = initial.astype(dtype), options.population
    result = Drift([], [], 0.0, weights)
    for iteration in range(options.iterations):
        before, rewards = (
            weights.copy(),
            np.random.default_rng(iteration).standard_normal(population),
        )
        for member in range(population):
            change = np.float32(options.sigma) * noise_of(iteration, member, len(initial))
            candidate = added(weights, change, noise_dtype)
            if reward is not None:
                rewards[member] = reward(
                    candidate.astype(ml_dtypes.bfloat16).astype(np.float32), iteration
                )
            if method != "master":
                weights = added(candidate, -change, noise_dtype)
        z = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        noises = (
            z[member] * noise_of(iteration, member, len(initial)) for member in range(population)
        )
        step = np.float32(options.alpha / population) * sum(noises).astype(np.float32)
        difference = weights.astype(np.float32) - before.astype(np.float32)
        result.drifts.append(rms(difference) / rms(step))
        result.steps.append(rms(step))
        if iteration == 0:
            result.changed = float(np.mean(difference != 0))
        weights = added(weights, step, np.float32)
    result.weights = weights.astype(np.float32)
    return result


def sorting(file: Path) -> tuple[Any, Reward, Callable[[Any], float]]:
    """Return the weights of the sorting model as a vector, the reward of a batch,
    and that of held-out questions.
    """
    import jax

    sys.path.insert(0, str(ROOT / "examples/sorting_jax"))
    model = importlib.import_module("sorting_model")
    with np.load(file) as arrays:
        parts = dict(arrays)
    ends, score = np.cumsum([array.size for array in parts.values()]), jax.jit(model.score)

    def evaluated(weights: Any, questions: Any) -> float:
        split = zip(parts.items(), np.split(weights, ends[:-1]), strict=True)
        return float(
            score({name: part.reshape(array.shape) for (name, array), part in split}, questions)[0]
        )

    vector = np.concatenate([array.ravel() for array in parts.values()])
    held_out = model.batch(2**40, HELD_OUT)
    return (
        vector,
        lambda weights, iteration: evaluated(weights, model.batch(iteration, QUESTIONS)),
        lambda weights: evaluated(weights, held_out),
    )


def main() -> int:
    """Print a table with a row for each method."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        help="file of the sorting model, in place of random weights and rewards",
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--population", type=int, default=30)
    parser.add_argument("--sigma", type=float, default=1e-3)
    parser.add_argument("--alpha", type=float, default=5e-4, help="step size")
    options = parser.parse_args()
    initial, reward, held_out = SPREAD * noise_of(0, 2**20, SIZE), None, None
    if options.model:
        initial, reward, held_out = sorting(options.model)
        print(f"exact matches of held-out questions at the start: {held_out(initial):.4f}\n")
    print(
        "| method | step, rms | drift in steps per iteration | weights not restored | exact matches | CPU s |"
    )
    print("|---|---|---|---|---|---|")
    for method in options.methods:
        since = time.process_time()
        result = follow(method, initial, reward, options)
        matches = f"{held_out(result.weights):.4f}" if held_out else ""
        cells = [
            f"{np.mean(result.steps):.2g}",
            f"{np.mean(result.drifts):.2g}",
            f"{100 * result.changed:.3g} %",
        ]
        print(
            f"| {method} | {' | '.join(cells)} | {matches} | {time.process_time() - since:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
