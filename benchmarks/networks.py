"""Compiled networks: CPU microseconds per member and step, and the speed-up of two ranks over one.

    python -m benchmarks.networks [--csv docs/networks.csv] [--candidates 16 64 256]

The networks are the presets of `cnn`, and Keras models with hidden layers of 64, 64 and 256, 256,
256 units, also as modules of PyTorch. "own" is the call of hpc_es, in which each member has its own
weights; "shared" is the same network with the same weights for all members, compiled in the same
way; in PyTorch a plain call of the module for a batch. Each network and library has a process of
its own, since Keras has one backend per process. The preset `atari` is measured without padding, as
the reference figures are, which are those of a prototype (one core of a shared AMD EPYC, CPU time).
Then a job trains with the larger Keras model on one rank and on two in turn; its chunks take over
20 ms. Needs the extras `jax`, `tensorflow` and `torch`, and Keras; with `--libraries torch --rounds
0` the extra `torch` alone. Takes about 6 minutes on a free machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.scaling import rate

RESULTS = ROOT / "benchmarks" / "results"
# shape of an image
CNN = {"cnn minatar": (10, 10, 4), "cnn atari": (84, 84, 4), "cnn a3c": (42, 42, 1)}
# inputs, hidden, outputs
KERAS = {"Keras 8-64-64-4": (8, (64, 64), 4), "Keras 27-256x3-8": (27, (256,) * 3, 8)}
# the same as modules of PyTorch
TORCH = {name.replace("Keras", "torch"): shape for name, shape in KERAS.items()}
CALLS = [
    *((name, "jax") for name in [*CNN, *KERAS]),
    *((name, "tensorflow") for name in KERAS),
    *((name, "torch") for name in TORCH),
]
ACTIONS = 6  # of a game
# (network, library, weights) -> {members: microseconds}
REFERENCE: dict[tuple[str, str, str], dict[int, float]] = {
    ("cnn minatar", "jax", "own"): {16: 12, 64: 17, 256: 21},
    ("cnn minatar", "jax", "shared"): {16: 5.9, 64: 4.4, 256: 4.0},
    ("cnn atari", "jax", "own"): {16: 122, 64: 134},
    ("cnn atari", "jax", "shared"): {16: 54, 64: 74},
    ("cnn a3c", "jax", "own"): {16: 126, 64: 139},
    ("cnn a3c", "jax", "shared"): {16: 48, 64: 53},
    ("Keras 8-64-64-4", "jax", "own"): {16: 1.5, 64: 0.7, 256: 0.6},
    ("Keras 8-64-64-4", "jax", "shared"): {256: 0.2},
    ("Keras 8-64-64-4", "tensorflow", "own"): {16: 15, 64: 4.0, 256: 1.4},
    ("Keras 27-256x3-8", "jax", "own"): {16: 8.9, 64: 15, 256: 17},
    ("Keras 27-256x3-8", "jax", "shared"): {16: 3.0, 64: 1.8, 256: 1.4},
    ("Keras 27-256x3-8", "tensorflow", "own"): {256: 19},
}
REPEATS = 5
TARGET = 1.8  # speed-up of two ranks
CHUNK = 16  # jobs
JOB = """
seed: 1
task: {kind: episodes, env_id: Pendulum-v1}
policy: {kind: network, network: "benchmarks.networks:keras_network", network_kwargs: {hidden: [256, 256, 256]}}
algorithm: {kind: es, population_size: 256, sigma: 0.1}
noise: {kind: counter}
report: {plot_interval_seconds: 0}
"""


def main() -> int:
    """Print a table and write it as CSV; with --measure,
    measure one network and print its rows as JSON.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    parser.add_argument(
        "--candidates", type=int, nargs="+", default=[16, 64, 256], help="members of a call"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="duration of one of 5 measurements"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="jobs on one rank and on two; 0: none"
    )
    parser.add_argument(
        "--generations", type=int, default=12, help="of a job; the first quarter is not timed"
    )
    names, libraries = [*CNN, *KERAS, *TORCH], ["jax", "tensorflow", "torch"]
    parser.add_argument("--networks", nargs="+", choices=names, default=names)
    parser.add_argument("--libraries", nargs="+", choices=libraries, default=libraries)
    parser.add_argument("--csv", type=Path, default=RESULTS / "networks.csv", help="file to write")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure, options.candidates, options.seconds)))
        return 0
    print(f"load {os.getloadavg()[0]:.1f}: other load distorts the figures\n")
    print(
        "| network | library | members | own, us | shared, us | own over shared | own, reference | shared, reference |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for name, library in CALLS:
        if name in options.networks and library in options.libraries:
            rows += table(name, library, options.candidates, options.seconds)
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if options.rounds:
        print("\n" + scaling_text(options.rounds, options.generations))
    return 0


def table(
    name: str, library: str, candidates: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Measure a network in a process of its own; print and return its rows."""
    sizes = [str(size) for size in candidates]
    arguments = ["--measure", name, library, "--candidates", *sizes, "--seconds", str(seconds)]
    env = {
        **os.environ,
        "KERAS_BACKEND": library,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, "-m", "benchmarks.networks", *arguments]
    done = subprocess.run(
        line, cwd=ROOT, env=env, check=True, capture_output=True, text=True, timeout=900
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        cells = [row["own_us"], row["shared_us"], row["own_us"] / row["shared_us"]]
        references = [
            "" if row[key] is None else f"{row[key]:g}"
            for key in ("own_reference", "shared_reference")
        ]
        texts = [
            name,
            library,
            str(row["members"]),
            *(f"{cell:.3g}" for cell in cells),
            *references,
        ]
        print(f"| {' | '.join(texts)} |", flush=True)
    return rows


# In the process of one network and library.


def measured(
    name: str, library: str, candidates: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each number of members."""
    policy = cnn_policy(name) if name in CNN else dense_policy(name, library)
    rows = []
    for size in candidates:
        row: dict[str, Any] = {
            "network": name,
            "library": library,
            "members": size,
            "params": policy.layout.size,
        }
        for weights, call in (
            ("own", own_call(policy, size)),
            ("shared", shared_call(policy, size)),
        ):
            row[f"{weights}_us"] = cpu_microseconds(call, seconds) / size
            row[f"{weights}_reference"] = REFERENCE.get((name, library, weights), {}).get(size)
        rows.append(row)
    return rows


def cnn_policy(name: str) -> Any:
    """Return the policy of a preset for games with 6 actions."""
    from hpc_es.core.data import Discrete, ObservationSpec, Spaces
    from hpc_es.policies import cnn

    preset: Any = name.removeprefix("cnn ")
    dtype = np.dtype(np.float32 if preset == "minatar" else np.uint8)
    options = cnn.Options(preset=preset, padding="valid" if preset == "atari" else None)
    return cnn.build(options, Spaces(ObservationSpec(CNN[name], dtype), Discrete(ACTIONS)))


def dense_policy(name: str, library: Any) -> Any:
    """Return the policy of a Keras model or a module of PyTorch."""
    from hpc_es.core.data import Discrete, Spaces, flat_observations
    from hpc_es.policies import network

    inputs, hidden, outputs = {**KERAS, **TORCH}[name]
    builder = "torch_network" if library == "torch" else "keras_network"
    options = network.Options(
        network=f"benchmarks.networks:{builder}",
        network_kwargs={"hidden": hidden},
        backend=library,
    )
    return network.build(options, Spaces(flat_observations(inputs), Discrete(outputs)))


def keras_network(observations: Any, outputs: int, hidden: Sequence[int] = (64, 64)) -> Any:
    """Return a Keras model of dense layers with tanh."""
    import keras

    layers = [keras.layers.Dense(units, "tanh") for units in hidden]
    return keras.Sequential(
        [keras.layers.Input(observations.shape), *layers, keras.layers.Dense(outputs)]
    )


def torch_network(observations: Any, outputs: int, hidden: Sequence[int] = (64, 64)) -> Any:
    """Return the same as a module of PyTorch."""
    from torch import nn

    widths = [observations.size, *hidden]
    layers = [(nn.Linear(n, m), nn.Tanh()) for n, m in pairwise(widths)]
    return nn.Sequential(*chain(*layers), nn.Linear(widths[-1], outputs))


def weights_of(policy: Any, members: int) -> dict[str, Any]:
    """Return weights by name, float32[members, ...]."""
    rng = np.random.default_rng(0)
    theta = 0.1 * rng.standard_normal((members, policy.layout.size), np.float32) + policy.initial(
        rng
    )
    spans, shapes = policy.layout.spans, policy.layout.shapes
    return {
        name: theta[:, start:stop].reshape(members, *shapes[name])
        for name, (start, stop) in spans.items()
    }


def inputs_of(policy: Any, members: int) -> tuple[list[Any], Any]:
    """Return memory [members, ...] and observations [members, ...]."""
    spec = policy.spaces.observations
    numbers = np.random.default_rng(1).integers(
        0, 256 if spec.is_integer else 2, (members, *spec.shape)
    )
    memory = [
        np.repeat(np.asarray(leaf)[np.newaxis], members, axis=0) for leaf in policy.network.memory()
    ]
    return memory, numbers.astype(spec.dtype)


def own_call(policy: Any, size: int) -> Callable[[], Any]:
    """Return a step of members with their own weights, as in training."""
    memory, observations = inputs_of(policy, size)
    from hpc_es.policies.networks.backend import network_backend

    call = network_backend(policy.network.backend).call(policy.network, size)
    parameters = call.load(weights_of(policy, size), {})
    return lambda: np.asarray(call.step(parameters, memory, observations)[0])


def shared_call(policy: Any, size: int) -> Callable[[], Any]:
    """Return a step of members that share the weights of the first one."""
    memory, observations = inputs_of(policy, size)
    first = {name: part[0] for name, part in weights_of(policy, 1).items()}
    if policy.network.backend == "tensorflow":
        import tensorflow as tf

        model = policy.network.model(policy.layout.join(first))
        compiled = tf.function(lambda x: model(x, training=False), jit_compile=True)
        return lambda: np.asarray(compiled(tf.convert_to_tensor(observations)))
    if policy.network.backend == "torch":
        import torch

        module = policy.network.module
        module.load_state_dict(policy.network.tensors(policy.layout.join(first)))
        inputs = torch.from_numpy(observations)

        def called() -> Any:
            with torch.no_grad():
                return module(inputs).numpy()

        return called
    import jax

    step = jax.jit(jax.vmap(policy.network.apply, in_axes=(None, 0, 0)))
    parameters, leaves = jax.device_put(first), tuple(memory)
    return lambda: np.asarray(step(parameters, leaves, observations)[0])


def cpu_microseconds(call: Callable[[], Any], seconds: float) -> float:
    """Return the CPU microseconds of a call in all threads, the median of several measurements."""
    call()  # compiles
    call()
    since = time.process_time()
    call()
    calls = max(1, round(seconds / max(time.process_time() - since, 1e-5)))
    results = []
    for _ in range(REPEATS):
        since = time.process_time()
        for _ in range(calls):
            call()
        results.append((time.process_time() - since) / calls)
    return 1e6 * median(results)


# Jobs.


def scaling_text(rounds: int, generations: int) -> str:
    """Return the speed-up of two ranks over one, and the seconds of a chunk; jobs alternate."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    chunks = []
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "job.yaml"
        config.write_text(JOB)
        overrides = (
            f"stop={{generations: {generations}}}",
            "evaluation.interval=0",
            f"mpi.chunk_size={CHUNK}",
        )
        for number in range(rounds):
            for ranks, values in rates.items():
                output = Path(directory) / f"{ranks}-{number}"
                line = command(ranks, config, output, *overrides)
                subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=900)
                rows = metrics(output)
                timed = rows[len(rows) // 4 :]
                values.append(rate(timed))
                if ranks == 1:
                    chunks.append(
                        1e3
                        * median(row["seconds_this_generation"] for row in timed)
                        / (256 / CHUNK)
                    )
    speedup = median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    one, two = (f"{median(values):,.0f}" for values in rates.values())
    verdict = "met" if speedup >= TARGET else "missed"
    text = f"Pendulum, Keras 3-256x3-1 in JAX, chunks of {median(chunks):.0f} ms: {one} env-steps/s on one rank, {two}"
    return f"{text} on two, speed-up {speedup:.2f} (target {TARGET}, {verdict})"


if __name__ == "__main__":
    sys.exit(main())
