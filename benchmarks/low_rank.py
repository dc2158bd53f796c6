"""Low-rank perturbations: CPU time of a step and of an update beside full noise, and memory of a
large population.

    OMP_NUM_THREADS=1 python -m benchmarks.low_rank [--members 16 64 256] [--parts steps update
    memory]

The network is 27-256-256-256-8 with tanh and biases. A step evaluates each member once. "full" is
full noise, "shared" the same weights for all members. Variants are measured in turn, and ratios are
medians over rounds, because other load changes the speed of a shared machine. The update includes
the noise. Memory is the peak of a job with 4,096 members. JAX (--library jax: a Keras model on the
JAX backend) needs the extra `jax` and Keras. `--parts compiled` measures whole generations of
compiled episodes.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT
from hpc_es.core.data import Box, Spaces, flat_observations
from hpc_es.core.keys import Keys
from hpc_es.core.population import Directions, Factorisation, LowRank, Perturbed
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.low_rank import LowRankNoise
from hpc_es.policies import mlp

INPUTS, HIDDEN, OUTPUTS = 27, (256, 256, 256), 8
SPACES = Spaces(
    flat_observations(INPUTS),
    Box(np.full(OUTPUTS, -1, np.float32), np.full(OUTPUTS, 1, np.float32)),
)
PARTS = ["steps", "update", "memory", "compiled"]
MEMORY_MEMBERS = 4096
# Microseconds of a member in NumPy of a prototype, by variant and members (one core of a shared AMD
# EPYC)
REFERENCE: Mapping[str, Mapping[int, float]] = {
    "full": {16: 8.0, 64: 13, 256: 14},
    "rank 1, matrix": {16: 4.7, 64: 3.1, 256: 2.7},
    "rank 1, rows": {16: 6.2, 64: 5.0, 256: 5.0},
    "shared": {16: 3.9, 64: 2.7, 256: 2.4},
}
JOB = """
seed: 1
task: {kind: episodes, env_id: Pendulum-v1, max_episode_steps: 5}
policy: {kind: mlp, hidden_dims: [256, 256, 256], low_rank_product: matrix}
algorithm: {kind: es, population_size: %d, sigma: 0.05}
noise: {kind: counter, rank: 1}
mpi: {chunk_size: 256}
evaluation: {interval: 0}
report: {plot_interval_seconds: 0}
stop: {generations: 2}
"""


def main() -> int:
    """Print tables, and write the steps as CSV."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_rank", description=__doc__)
    parser.add_argument(
        "--members", type=int, nargs="+", default=[16, 64, 256], help="members of a step"
    )
    parser.add_argument("--library", choices=["numpy", "jax"], default="numpy")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:3])
    parser.add_argument(
        "--rounds", type=int, default=9, help="measurements of each variant, in turn"
    )
    parser.add_argument("--seconds", type=float, default=0.05, help="CPU time of a measurement")
    parser.add_argument("--pairs", type=int, default=2048, help="pairs of an update")
    parser.add_argument("--csv", type=Path, help="file to write")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}\n")
    rows: list[dict[str, Any]] = []
    if "steps" in options.parts:
        for members in options.members:
            rows += steps(members, options.library, options.rounds, options.seconds)
        print_table(rows)
    if "update" in options.parts:
        print(update_text(options.pairs, min(options.rounds, 3)))
    if "memory" in options.parts:
        print(memory_text())
    if "compiled" in options.parts:
        print(compiled_text())
    if options.csv and rows:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


def in_turn(
    calls: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return CPU seconds of each call, [rounds], measured in turn."""
    counts = {}
    for name, call in calls.items():
        call()  # compiles, and fills caches
        since = time.process_time()
        call()
        counts[name] = max(1, round(seconds / max(time.process_time() - since, 1e-5)))
    results: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            since = time.process_time()
            for _ in range(counts[name]):
                call()
            results[name].append((time.process_time() - since) / counts[name])
    return results


def steps(members: int, library: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each variant: microseconds of a member, and the speed over full noise."""
    calls = numpy_calls(members) if library == "numpy" else jax_calls(members)
    results = in_turn(calls, rounds, seconds)
    rows = []
    for name, times in results.items():
        speed = median(full / own for full, own in zip(results["full"], times, strict=True))
        reference = REFERENCE.get(name, {}).get(members, "") if library == "numpy" else ""
        row = {
            "library": library,
            "members": members,
            "variant": name,
            "us": 1e6 * median(times) / members,
        }
        rows.append({**row, "over_full": speed, "reference_us": reference})
    return rows


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows as a Markdown table."""
    print("| library | members | variant | us per member | speed over full noise | reference, us |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        cells = [
            row["library"],
            row["members"],
            row["variant"],
            f"{row['us']:.2g}",
            f"{row['over_full']:.2f}",
        ]
        print(f"| {' | '.join(map(str, cells))} | {row['reference_us']} |")


def candidates(policy: Any, members: int, rank: int | None) -> Perturbed | LowRank:
    """Return antithetic pairs around initial parameters."""
    theta = policy.initial(np.random.default_rng(0))
    pairs, rows = range(-(-members // 2)), np.arange(members) // 2
    scales = np.where(np.arange(members) % 2 == 0, 0.05, -0.05).astype(np.float32)
    if rank is None:
        directions = Directions(CounterNoise(Keys(1), len(theta)), 0, pairs)
        return Perturbed(policy.layout, theta[np.newaxis], directions, rows, scales)
    noise = low_rank_noise(policy, rank)
    return LowRank(noise.factorisation, theta, noise.numbers(0, pairs), rows, scales)


def low_rank_noise(policy: Any, rank: int) -> LowRankNoise:
    """Return counter noise of this rank."""
    factorisation = Factorisation(policy.layout, rank)
    return LowRankNoise(CounterNoise(Keys(1), factorisation.compact.size), factorisation)


def numpy_policy(product: Any = "rows") -> Any:
    """Return the policy in NumPy."""
    return mlp.build(mlp.Options(hidden_dims=HIDDEN, low_rank_product=product), SPACES)


def numpy_calls(members: int) -> dict[str, Callable[[], Any]]:
    """Return a step of each variant."""
    observations = np.random.default_rng(1).standard_normal((members, INPUTS)).astype(np.float32)
    rows, matrix = numpy_policy(), numpy_policy("matrix")
    actors = {"full": rows.bind(candidates(rows, members, None), None)}
    for rank in (1, 4):
        actors[f"rank {rank}, matrix"] = matrix.bind(candidates(matrix, members, rank), None)
        actors[f"rank {rank}, rows"] = rows.bind(candidates(rows, members, rank), None)
    calls: dict[str, Callable[[], Any]] = {
        name: lambda actor=actor: actor.act(observations) for name, actor in actors.items()
    }
    layers = list(rows.layers.layers(rows.initial(np.random.default_rng(0))))

    def shared() -> Any:
        x = observations
        for weights, biases in layers:
            x = x @ weights
            x += biases
            np.tanh(x, out=x)
        return x

    return {**calls, "shared": shared}


def jax_calls(members: int) -> dict[str, Callable[[], Any]]:
    """Return a step of a Keras model in JAX with full noise, rank 1 and 4, and common weights."""
    os.environ["KERAS_BACKEND"] = "jax"
    from hpc_es.policies import network

    options = network.Options(
        network="benchmarks.networks:keras_network",
        network_kwargs={"hidden": HIDDEN},
        candidates_per_call=members,
    )
    policy = network.build(options, SPACES)
    observations = np.random.default_rng(1).standard_normal((members, INPUTS)).astype(np.float32)
    actors = {"full": policy.bind(candidates(policy, members, None), None)}
    for rank in (1, 4):
        actors[f"rank {rank}"] = policy.bind(candidates(policy, members, rank), None)
    theta = policy.initial(np.random.default_rng(0))
    actors["shared"] = policy.bind_shared(policy.head, theta, members)
    return {name: lambda actor=actor: actor.act(observations) for name, actor in actors.items()}


def update_text(pairs: int, rounds: int) -> str:
    """Return the CPU time of the sums of an update, with the noise,
    of full noise and of rank 1 and 4.
    """
    policy = numpy_policy()
    weights = np.random.default_rng(0).standard_normal((1, pairs)).astype(np.float32)
    noises: dict[str, Any] = {"full": CounterNoise(Keys(1), policy.layout.size)}
    noises |= {f"rank {rank}": low_rank_noise(policy, rank) for rank in (1, 4)}
    results: dict[str, list[float]] = {name: [] for name in noises}
    for generation in range(rounds):  # another one each time, so that no noise is cached
        for name, noise in noises.items():
            since = time.process_time()
            for block in range(len(noise.edges)):
                noise.weighted_sums(generation, weights, (1,), block, np.dtype(np.float32))
            results[name].append(time.process_time() - since)
    texts = [f"{name} {median(times):.3g} s" for name, times in results.items()]
    return f"\nupdate of {policy.layout.size:,} parameters from {pairs:,} pairs, CPU time: {', '.join(texts)}"


def memory_text() -> str:
    """Return the peak memory of a job on one rank."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "job.yaml"
        config.write_text(JOB % MEMORY_MEMBERS)
        line = [
            sys.executable,
            "-m",
            "hpc_es.main",
            str(config),
            "--output",
            str(Path(directory) / "run"),
        ]
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=900)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    text = f"peak memory of a job with {MEMORY_MEMBERS:,} members of a network 3-256-256-256-1, chunks of 256"
    return f"{text}: {peak:.0f} MB (target 300)"


def compiled_text() -> str:
    """Return timesteps per CPU second of whole generations of compiled Pendulum,
    with full noise and rank 1 and 4.
    """
    import hpc_es
    from hpc_es.config.loading import validate

    texts, timesteps = [], 256 * 200
    for rank in (None, 1, 4):
        task = {
            "kind": "jax_episodes",
            "env_id": "gymnax:Pendulum-v1",
            "lanes": 32,
            "jobs_per_call": 256,
        }
        config = validate(
            {
                "task": {**task, "compilation_cache": False},
                "policy": {
                    "kind": "mlp",
                    "hidden_dims": HIDDEN,
                    "activation": "relu",
                    "normalisation": "layer",
                },
                "algorithm": {"kind": "es", "population_size": 256, "sigma": 0.1},
                "noise": {"kind": "counter", "rank": rank},
                "evaluation": {"interval": 0},
                "stop": {"generations": 4},
            }
        )
        with tempfile.TemporaryDirectory() as directory:
            clock = [time.process_time() for _ in hpc_es.train(config, Path(directory) / "run")]
        # of the generations after the first one, in which the call is compiled
        seconds = median(np.diff(clock))
        texts.append(
            f"{'full noise' if rank is None else f'rank {rank}'} {timesteps / seconds:,.0f}"
        )
    return f"timesteps of compiled Pendulum per CPU second, 3-256-256-256-1, 256 members: {', '.join(texts)}"


if __name__ == "__main__":
    sys.exit(main())
