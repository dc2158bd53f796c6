"""Environments, networks and models on a GPU: speed, and whether runs repeat their bits.

    python -m benchmarks.gpu [--parts environments networks models ranks]
    python -m benchmarks.gpu --device cpu --lanes 16          # without a GPU

- `environments`: Brax ant and Breakout of MinAtar, which are compiled, and Pong of Atari with the
  network of `configs/es_pong.yaml`; environment steps per second. If evosax is installed, its
  OpenAI-ES runs Brax ant with the same population on the same device.
- `networks`: wall time of a step of each member, with NumPy arrays as inputs and results: the
  presets of `cnn`, and a Keras model with full noise and with low-rank noise.
- `models`: a transformer of 10^8 parameters, computed in bfloat16, with rank 1; seconds per
  generation, and memory.
- `ranks`: Pong on 1, 4 and 16 ranks that share the GPU.

Environments and models are run twice on one rank, once on two, and once on one rank with an
interruption after half of the generations (`--runs` selects); all must have the same parameters in
the end. On one GPU the two ranks share it. The first quarter of the generations is not timed. Needs
the extras `jax-cuda` and `atari`, Keras, and for Brax ant Brax; or `jax` and `atari` with --device
cpu. Prints one row per case, and writes benchmarks/results/gpu.json; the exit status is 1 if
parameters differ.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.peers.reporter import MARK, NOT_COUNTED
from benchmarks.scaling import rate
from hpc_es.devices import jax_setup
from hpc_es.devices.placement import visible_gpus

COMPILED, PONG = ROOT / "configs/es_jax_brax_ant.yaml", ROOT / "configs/es_pong.yaml"
ENVIRONMENTS = {
    "brax:ant": ("task.env_kwargs={backend: spring}",),
    "gymnax:Breakout-MinAtar": ("task.env_kwargs={}",),
    "atari:pong": (),
}
STEPS = 200  # of an episode
# the first episodes of MinAtar are short
JOBS_PER_LANE = {"brax:ant": 1, "gymnax:Breakout-MinAtar": 8}
NOISES = {
    "table": "noise={kind: table}",
    "portable": "noise={kind: portable}",
    "rank 1": "noise={kind: portable, rank: 1}",
}
FRAMES_PER_STEP = 4  # of Pong
COMMON = ("evaluation.interval=0", "report.plot_interval_seconds=0", "mpi.ranks_per_gpu=2")
OF_COMPILED = (
    *("policy.hidden_dims=[64, 64]", f"task.max_episode_steps={STEPS}"),
    "task.observation_normalization={enabled: false}",
)
RUNS = {"first": 1, "again": 1, "two_ranks": 2, "resumed": 1}  # number of ranks
PARTS = ("environments", "networks", "models", "ranks")
DIGITS = 12  # of a digest in the table
EVOSAX_SECONDS = 20.0
SLOWEST = 3600.0  # seconds of a run
NETWORKS = {"cnn minatar": 4096, "cnn a3c": 1024, "cnn atari": 256}  # largest number of members
QUESTIONS = 32  # of a batch of the transformer
MODEL = """
seed: 1
task: {kind: model, model: "benchmarks.gpu:transformer", model_kwargs: {units: %d, layers: %d}, jobs_per_call: %d}
algorithm: {kind: es, population_size: 64, sigma: 0.01, optimizer: {kind: %s, learning_rate: 0.001}}
noise: {kind: portable, rank: 1}
evaluation: {interval: 0}
checkpoint: {interval: %d, interval_seconds: 1e6, full_interval: 1000}
mpi: {update: replicated, ranks_per_gpu: 2}
report: {plot_interval_seconds: 0}
"""


def main() -> int:
    """Print one row per case; the exit status is 1 if
    parameters differ and 2 without the device.
    """
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=["environments", "networks", "models"]
    )
    parser.add_argument(
        "--runs", nargs="+", choices=RUNS, default=list(RUNS), help="of environments and models"
    )
    parser.add_argument(
        "--environments", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS)
    )
    parser.add_argument(
        "--noises",
        nargs="+",
        choices=NOISES,
        default=["portable", "rank 1"],
        help="of environments",
    )
    parser.add_argument(
        "--lanes", type=int, nargs="+", default=[2048], help="episodes side by side"
    )
    parser.add_argument(
        "--candidates", type=int, default=64, help="candidates per call of the network for Pong"
    )
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument(
        "--members", type=int, nargs="+", default=[64, 256, 1024, 4096], help="of a network's call"
    )
    parser.add_argument("--units", type=int, default=1024, help="units of the transformer")
    parser.add_argument("--layers", type=int, default=8, help="layers of the transformer")
    parser.add_argument(
        "--optimizer", choices=("adam", "sgd"), default="adam", help="of the transformer"
    )
    parser.add_argument(
        "--jobs-per-call", type=int, default=32, help="candidates per call of the transformer"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "gpu.json",
        help="file to write",
    )
    options = parser.parse_args()
    if text := missing_device(options.device):
        sys.stderr.write(f"benchmarks.gpu: {text}\n")
        return 2
    if options.device == "cpu":
        print("on the CPU, as --device cpu says: the figures say nothing about a GPU")
    rows = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for row in measured(options):
        cells = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
        )
        print("  ".join(cells), flush=True)
        rows.append({**row, "date": time.strftime("%Y-%m-%d")})
        options.json.write_text(json.dumps(rows, indent=2))
    return int(not all(row.get("same_bits", True) for row in rows))


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of all parts."""
    if "environments" in options.parts:
        for env_id in options.environments:
            for size in [options.candidates] if env_id == "atari:pong" else options.lanes:
                for noise in options.noises[:1] if env_id == "atari:pong" else options.noises:
                    yield environment_row(env_id, size, noise, options)
    if "ranks" in options.parts:
        yield from pong_rows(options)
    if "networks" in options.parts:
        yield from network_rows(options.device, options.members)
    if "models" in options.parts:
        yield model_row(options)


def missing_device(device: str) -> str:
    """Return why the benchmark cannot run on this device; "" if it can."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed: pip install 'hpc_es[jax-cuda]', or 'hpc_es[jax]' for --device cpu"
    if device == "gpu" and not visible_gpus(os.environ).names:
        return (
            "expected an NVIDIA GPU, found none on this machine; --device cpu measures on the CPU"
        )
    if device == "gpu" and not jax_setup.has_cuda():
        return "JAX has no CUDA support: pip install 'hpc_es[jax-cuda]'; --device cpu measures on the CPU"
    return ""


def job(env_id: str, size: int) -> tuple[Path, tuple[str, ...]]:
    """Return the config of an environment, and its overrides with `size` episodes side by side."""
    if env_id == "atari:pong":
        sizes = (f"policy.candidates_per_call={size}", f"mpi.chunk_size={size}")
        return PONG, (*sizes, f"task.max_frames={STEPS * FRAMES_PER_STEP}")
    return COMPILED, (
        *OF_COMPILED,
        f"task.env_id={env_id}",
        f"task.lanes={size}",
        f"task.jobs_per_call={size * JOBS_PER_LANE[env_id]}",
    )


def environment_row(
    env_id: str, size: int, noise: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run an environment in all ways and return its row."""
    calls = max(RUNS[name] for name in options.runs)  # one for each rank
    population = calls * size * JOBS_PER_LANE.get(env_id, 1)
    config, overrides = job(env_id, size)
    overrides = (
        *COMMON,
        *overrides,
        *ENVIRONMENTS[env_id],
        NOISES[noise],
        f"algorithm.population_size={population}",
    )
    outcome = in_all_ways(config, overrides, options)
    return {
        **{"env": env_id, "lanes": size, "noise": noise, "population": population, **outcome},
        **{
            "evosax": evosax_rate(env_id, options.device, population)
            if noise == options.noises[0]
            else None
        },
        **{"load": os.getloadavg()[0]},
    }


def in_all_ways(
    config: Path, overrides: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Run a job as `--runs` says; return steps per second, seconds of a generation,
    and whether the bits are equal.
    """
    rates, seconds, digests, parts, line = {}, {}, {}, {}, ""
    generations = options.generations
    with tempfile.TemporaryDirectory() as directory:
        for name in options.runs:
            output = Path(directory) / name
            stop, device = "stop={{generations: {}}}", f"device={options.device}"
            if name == "resumed":
                run(config, RUNS[name], output, *overrides, device, stop.format(generations // 2))
            line = run(config, RUNS[name], output, *overrides, device, stop.format(generations))
            rows = metrics(output)
            timed = rows[len(rows) // 4 :]
            rates[name] = rate(timed)
            seconds[name] = median(row["seconds_this_generation"] for row in timed)
            parts[name] = {
                part: median(row[f"time_{part}_mean"] for row in timed)
                for part in ("environment", "update")
            }
            digests[name] = json.loads((output / "result.json").read_text())["theta_sha256"][
                :DIGITS
            ]
    return {
        **{"device": line, "per_second": rates, "generation_seconds": seconds, "parts": parts},
        **{"same_bits": len(set(digests.values())) == 1, "sha256": digests},
    }


def run(config: Path, ranks: int, output: Path, *overrides: str) -> str:
    """Run a job to its end and return the line of its log that names the device.

    All runs have one compilation cache, so that each program is compiled once.
    """
    line = command(ranks, config, output, *overrides)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(output.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ended = subprocess.run(
        line,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=SLOWEST,
        env={**os.environ, **cache},
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(line)} failed: {ended.stderr}")
    return next((text for text in ended.stdout.splitlines() if " computes on " in text), "unknown")


def pong_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the environment steps per second of Pong on some numbers of ranks;
    each plays `--candidates` games.
    """
    for ranks in (1, 4, 16):
        config, overrides = job("atari:pong", options.candidates)
        sizes = (
            f"algorithm.population_size={options.candidates * ranks}",
            f"mpi.ranks_per_gpu={ranks}",
        )
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "run"
            stop = f"stop={{generations: {options.generations}}}"
            line = run(
                *(config, ranks, output, *COMMON, *overrides, NOISES["portable"], *sizes),
                *(f"device={options.device}", stop),
            )
            rows = metrics(output)
        yield {
            "env": "atari:pong",
            "device": line,
            "ranks": ranks,
            "per_second": rate(rows[len(rows) // 4 :]),
        }


def network_rows(device: str, members: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the wall time of a step of networks, in microseconds per member."""
    from benchmarks import low_rank, networks

    if device == "gpu":
        jax_setup.choose("gpu", 0)
    for name, largest in NETWORKS.items():
        policy = networks.cnn_policy(name)
        for size in (size for size in members if size <= largest):
            calls = {
                "own": networks.own_call(policy, size),
                "shared": networks.shared_call(policy, size),
            }
            yield {"network": name, "members": size, **wall_microseconds(calls, size)}
    for size in members:
        calls = low_rank.jax_calls(size)
        yield {"network": "Keras 27-256x3-8", "members": size, **wall_microseconds(calls, size)}


def wall_microseconds(calls: Mapping[str, Callable[[], Any]], size: int) -> dict[str, float]:
    """Return the median time of each call divided by the number of members."""
    results = {}
    for name, call in calls.items():
        times = []
        for _ in range(23):
            since = time.perf_counter()
            call()
            times.append(time.perf_counter() - since)
        results[name] = 1e6 * median(times[3:]) / size
    return results


def model_row(options: argparse.Namespace) -> dict[str, Any]:
    """Run the transformer in all ways; memory is the peak on the device,
    and that of the largest process.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "job.yaml"
        interval = 1 if "resumed" in options.runs else 1000
        config.write_text(
            MODEL
            % (options.units, options.layers, options.jobs_per_call, options.optimizer, interval)
        )
        with device_memory(options.device) as peak:
            outcome = in_all_ways(config, (), options)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    memory = {"device_gb": max(peak, default=0.0), "process_gb": largest}
    shapes = example().shapes(options.units, options.layers).values()
    parameters = sum(rows * columns for rows, columns in shapes)
    return {"model": "transformer", "parameters": parameters, **outcome, **memory}


@contextmanager
def device_memory(device: str) -> Iterator[list[float]]:
    """Give a list to which the memory in use on the first GPU, in GB,
    is appended during the context.
    """
    used: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not ended.wait(0.5):
            used.append(
                float(subprocess.run(query, check=True, capture_output=True, text=True).stdout)
                * 2**20
                / 1e9
            )

    thread = threading.Thread(target=watch, daemon=True)
    if device == "gpu":
        thread.start()
    yield used
    ended.set()
    if device == "gpu":
        thread.join()


def example() -> Any:
    """Return the module examples/sorting_jax/sorting_model.py."""
    sys.path.insert(0, str(ROOT / "examples" / "sorting_jax"))
    return importlib.import_module("sorting_model")


def transformer(units: int, layers: int) -> Mapping[str, Any]:
    """Return the transformer of examples/sorting_jax with random weights,
    scored by the likelihood of right digits.
    """
    import jax
    import jax.numpy as jnp

    sorting_model = example()

    def parameters(seed: int) -> Mapping[str, Any]:
        numbers = np.random.default_rng(seed).standard_normal(2**20, np.float32) * np.float32(
            units**-0.5
        )
        return {
            name: np.resize(numbers, shape)
            for name, shape in sorting_model.shapes(units, layers).items()
        }

    def score(parameters: Mapping[str, Any], questions: Any) -> Any:
        answers = jnp.sort(questions, axis=1)
        logits = sorting_model.answer_logits(
            sorting_model.half(parameters), questions, answers
        ).astype(jnp.float32)
        likelihoods = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(
            likelihoods, answers[..., None].astype(jnp.int32), axis=-1
        ).mean()

    return {
        "parameters": parameters,
        "score": score,
        "batch": lambda seed: sorting_model.batch(seed, QUESTIONS),
    }


def evosax_rate(env_id: str, device: str, population: int) -> float | None:
    """Return the steps per second of evosax on Brax ant;
    None for other environments and if it is not installed.
    """
    if env_id != "brax:ant" or importlib.util.find_spec("evosax") is None:
        return None
    work = {"environment": env_id, "population": population, "hidden": [64, 64], "limit": STEPS}
    arguments = [json.dumps({**work, "seconds": EVOSAX_SECONDS})]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu" if device == "cpu" else "cuda,cpu"}
    program = [sys.executable, "-m", "benchmarks.peers.programs.evosax_open_es", *arguments]
    with subprocess.Popen(
        program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        reports = [
            (time.perf_counter(), int(text.split()[1]))
            for text in process.stdout
            if text.startswith(MARK)
        ]
    return _rate(reports[NOT_COUNTED - 1 :]) if process.returncode == 0 else None


def _rate(reports: Sequence[tuple[float, int]]) -> float:
    (since, before), (until, after) = reports[0], reports[-1]
    return (after - before) / (until - since)


if __name__ == "__main__":
    sys.exit(main())
