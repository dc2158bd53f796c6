"""Environments and networks on a GPU: environment steps per second, and whether runs repeat their bits.

    python -m benchmarks.gpu [--device gpu] [--lanes 2048] [--candidates 64] [--generations 8]
    python -m benchmarks.gpu --device cpu --lanes 16          # without a GPU

Runs Brax ant and Breakout of MinAtar, which are compiled, and Pong of Atari with the network of `configs/es_pong.yaml`,
twice on one rank, once on two, and once on one rank with an interruption after half of the generations. All four
must have the same parameters in the end. On one GPU the two ranks share it. Games of Pong are played on the CPU, one
for each of the candidates of a call. The first quarter of the generations is not timed. If evosax is installed, its
OpenAI-ES runs Brax ant with the same population on the same device. Needs the extras `jax-cuda` and `atari`, or `jax`
and `atari` with --device cpu. Prints one row per environment, and writes benchmarks/results/gpu.json; the exit status
is 1 if the parameters differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.peers.reporter import MARK, NOT_COUNTED
from benchmarks.scaling import rate
from hpc_es.devices import jax_setup
from hpc_es.devices.placement import visible_gpus

COMPILED, PONG = ROOT / "configs/es_jax_brax_ant.yaml", ROOT / "configs/es_pong.yaml"
ENVIRONMENTS = {
    "brax:ant": ("task.env_kwargs={backend: spring}",),
    "gymnax:Breakout-MinAtar": ("task.env_kwargs={}",),
    "atari:pong": ("noise={kind: counter}",),
}
STEPS = 200  # of an episode
FRAMES_PER_STEP = 4  # of Pong
COMMON = ("evaluation.interval=0", "report.plot_interval_seconds=0", "mpi.ranks_per_gpu=2")
OF_COMPILED = (
    *("policy.hidden_dims=[64, 64]", f"task.max_episode_steps={STEPS}"),
    "task.observation_normalization={enabled: false}",
)
RUNS = {"first": 1, "again": 1, "two_ranks": 2, "resumed": 1}  # number of ranks
DIGITS = 12  # of a digest in the table
EVOSAX_SECONDS = 20.0
SLOWEST = 3600.0  # seconds of a run


def main() -> int:
    """Print one row per environment; the exit status is 1 if parameters differ and 2 without the device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--lanes", type=int, default=2048, help="episodes side by side, and jobs per call")
    parser.add_argument("--candidates", type=int, default=64, help="candidates per call of the network for Pong")
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    options = parser.parse_args()
    if text := missing_device(options.device):
        sys.stderr.write(f"benchmarks.gpu: {text}\n")
        return 2
    if options.device == "cpu":
        print("on the CPU, as --device cpu says: the figures say nothing about a GPU")
    rows = []
    for env_id in options.environments:
        size = options.candidates if env_id == "atari:pong" else options.lanes
        row = measure(env_id, options.device, size, options.generations)
        cells = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print("  ".join(cells), flush=True)
        rows.append(row)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "gpu.json").write_text(json.dumps(rows, indent=2))
    return int(not all(row["same_bits"] for row in rows))


def missing_device(device: str) -> str:
    """Return why the benchmark cannot run on this device; "" if it can."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed: pip install 'hpc_es[jax-cuda]', or 'hpc_es[jax]' for --device cpu"
    if device == "gpu" and not visible_gpus(os.environ).names:
        return "expected an NVIDIA GPU, found none on this machine; --device cpu measures on the CPU"
    if device == "gpu" and not jax_setup.has_cuda():
        return "JAX has no CUDA support: pip install 'hpc_es[jax-cuda]'; --device cpu measures on the CPU"
    return ""


def job(env_id: str, size: int) -> tuple[Path, tuple[str, ...]]:
    """Return the config of an environment, and its overrides with `size` episodes per call."""
    if env_id == "atari:pong":
        sizes = (f"policy.candidates_per_call={size}", f"mpi.chunk_size={size}")
        return PONG, (*sizes, f"task.max_frames={STEPS * FRAMES_PER_STEP}")
    return COMPILED, (*OF_COMPILED, f"task.env_id={env_id}", f"task.lanes={size}", f"task.jobs_per_call={size}")


def measure(env_id: str, device: str, size: int, generations: int) -> dict[str, Any]:
    """Run an environment in all ways and return its row."""
    population = 2 * size  # one call for each of two ranks
    config, overrides = job(env_id, size)
    overrides = (
        *COMMON,
        *overrides,
        *ENVIRONMENTS[env_id],
        f"algorithm.population_size={population}",
        f"device={device}",
    )
    rates, digests, line = {}, {}, ""
    with tempfile.TemporaryDirectory() as directory:
        for name, ranks in RUNS.items():
            output = Path(directory) / name
            if name == "resumed":
                run(config, ranks, output, *overrides, f"stop={{generations: {generations // 2}}}")
            line = run(config, ranks, output, *overrides, f"stop={{generations: {generations}}}")
            rows = metrics(output)
            rates[name] = rate(rows[len(rows) // 4 :])
            digests[name] = json.loads((output / "result.json").read_text())["theta_sha256"][:DIGITS]
    return {
        **{"env": env_id, "device": line, "population": population, "one_rank": max(rates["first"], rates["again"])},
        **{"two_ranks": rates["two_ranks"], "same_bits": len(set(digests.values())) == 1, "sha256": digests},
        **{"evosax": evosax_rate(env_id, device, population), "load": os.getloadavg()[0]},
        "date": time.strftime("%Y-%m-%d"),
    }


def run(config: Path, ranks: int, output: Path, *overrides: str) -> str:
    """Run a job to its end and return the line of its log that names the device."""
    line = command(ranks, config, output, *overrides)
    ended = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SLOWEST)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(line)} failed: {ended.stderr}")
    return next((text for text in ended.stdout.splitlines() if " computes on " in text), "unknown")


def evosax_rate(env_id: str, device: str, population: int) -> float | None:
    """Return the steps per second of evosax on Brax ant; None for other environments and if it is not installed."""
    if env_id != "brax:ant" or importlib.util.find_spec("evosax") is None:
        return None
    work = {"environment": env_id, "population": population, "hidden": [64, 64], "limit": STEPS}
    arguments = [json.dumps({**work, "seconds": EVOSAX_SECONDS})]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu" if device == "cpu" else "cuda,cpu"}
    program = [sys.executable, "-m", "benchmarks.peers.programs.evosax_open_es", *arguments]
    with subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reports = [(time.perf_counter(), int(text.split()[1])) for text in process.stdout if text.startswith(MARK)]
    return _rate(reports[NOT_COUNTED - 1 :]) if process.returncode == 0 else None


def _rate(reports: Sequence[tuple[float, int]]) -> float:
    (since, before), (until, after) = reports[0], reports[-1]
    return (after - before) / (until - since)


if __name__ == "__main__":
    sys.exit(main())
