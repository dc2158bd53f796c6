"""Compiled episodes: environment steps per second on one rank and on two, and seconds of
compilation.

    python -m benchmarks.jax [--environments gymnax:Pendulum-v1 ...] [--rounds 5]

Needs the extra `jax`. Steps after the end of an episode do not count, nor do the first generations,
in which ranks wait for each other to start. Runs on one and two ranks alternate. The load average
is reported, since other load distorts the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import ROOT, command, metrics
from benchmarks.scaling import rate

CONFIG = ROOT / "configs/es_jax_pendulum.yaml"
ENVIRONMENTS: dict[str, tuple[str, ...]] = {  # with overrides; MLP 64 x 64, population 256
    "gymnax:CartPole-v1": ("stop={generations: 120}",),
    "gymnax:Pendulum-v1": ("stop={generations: 120}",),
    "brax:ant": (
        *("stop={generations: 4}", "algorithm.population_size=64", "task.max_episode_steps=200"),
        "task.jobs_per_call=32",  # one call per rank
        "task.env_kwargs={backend: spring}",
    ),
}
COMMON = (
    *("policy.hidden_dims=[64, 64]", "algorithm.population_size=256", "task.jobs_per_call=64"),
    *(
        "evaluation.interval=0",
        "report.plot_interval_seconds=0",
        "task.observation_normalization={enabled: false}",
    ),
)
COMPILING = """
import sys, time
from pathlib import Path
from hpc_es.config.loading import load
from hpc_es.devices.jax_setup import prepare_cache, use_cache
from hpc_es.training.build import build_task
config = load(sys.argv[1], sys.argv[3:])
problem = build_task(config).problem
use_cache(prepare_cache(Path(sys.argv[2])))
since = time.perf_counter()
problem.program.compile(lambda: None)
print(time.perf_counter() - since)
"""


def main() -> int:
    """Print one row per environment, and write benchmarks/results/jax.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jax", description=__doc__)
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS), metavar="ENV_ID")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(env_id, options.rounds) for env_id in options.environments]
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "jax.json").write_text(json.dumps(rows, indent=2))
    return 0


def measure(env_id: str, rounds: int) -> dict[str, Any]:
    """Alternate one rank, two ranks, and two jobs of one rank each that share only the machine."""
    overrides = (
        *COMMON,
        f"task.env_id={env_id}",
        *ENVIRONMENTS.get(env_id, ("stop={generations: 10}",)),
    )
    rates: dict[str, list[float]] = {"one_rank": [], "two_ranks": [], "side_by_side": []}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        starts = [compile_seconds(Path(directory), overrides) for _ in range(2)]
        for number in range(rounds):
            for name, jobs in (("one_rank", (1,)), ("two_ranks", (2,)), ("side_by_side", (1, 1))):
                outputs = [
                    Path(directory) / f"{name}-{number}-{index}" for index in range(len(jobs))
                ]
                rates[name].append(sum(run(jobs, outputs, overrides)))
    one, two, apart = (median(values) for values in rates.values())
    row = {
        **{"env": env_id, "one_rank": one, "two_ranks": two, "side_by_side": apart},
        "two_over_one": median(
            b / a for a, b in zip(rates["one_rank"], rates["two_ranks"], strict=True)
        ),
        "side_by_side_over_one": median(
            b / a for a, b in zip(rates["one_rank"], rates["side_by_side"], strict=True)
        ),
        "range": [[min(values), max(values)] for values in rates.values()],
        **{"compile_seconds": starts[0], "from_cache_seconds": starts[1], "load_before": load},
        "date": time.strftime("%Y-%m-%d"),
    }
    print(
        "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        )
    )
    return row


def run(jobs: Sequence[int], outputs: Sequence[Path], overrides: Sequence[str]) -> list[float]:
    """Run jobs with these numbers of ranks at the same time;
    return the steps per second of each.
    """
    lines = [
        command(ranks, CONFIG, output, *overrides)
        for ranks, output in zip(jobs, outputs, strict=True)
    ]
    started = [
        subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for line in lines
    ]
    if any(process.wait(3600) for process in started):
        raise RuntimeError(f"a job has failed: {lines}")
    rates = []
    for output in outputs:
        rows = metrics(output)
        rates.append(rate(rows[len(rows) // 4 :]))
    return rates


def compile_seconds(directory: Path, overrides: tuple[str, ...]) -> float:
    """Return the seconds to trace and compile in a new process,
    or to read the cache in `directory`.
    """
    arguments = [sys.executable, "-c", COMPILING, str(CONFIG), str(directory), *overrides]
    ran = subprocess.run(
        arguments, cwd=ROOT, check=True, capture_output=True, text=True, timeout=3600
    )
    return float(ran.stdout.split()[-1])


if __name__ == "__main__":
    sys.exit(main())
