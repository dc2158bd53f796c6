"""hpc_es: a run of `es` with these settings; chunks and everything else have their defaults."""

from __future__ import annotations

import tempfile

import hpc_es
from benchmarks.peers.reporter import Reporter, read_arguments

work = read_arguments()
library, _, _ = work["environment"].rpartition(":")
task = {"env_id": work["environment"], "max_episode_steps": work["limit"] or None}
if library:
    task["kind"] = "jax_episodes"
if library == "brax":
    task["env_kwargs"] = {"backend": "spring"}
config = {
    "task": task,
    "policy": {"kind": "mlp", "hidden_dims": list(work["hidden"])},
    "algorithm": {"kind": "es", "population_size": work["population"], "sigma": 0.1},
    "noise": {"kind": "table", "table_size": 5_000_000},
    "evaluation": {"interval": 0},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 1_000_000},
}
reporter = Reporter(work["seconds"])
with tempfile.TemporaryDirectory() as directory, hpc_es.train(config, directory) as run:
    for row in run:
        if not reporter.report(row["timesteps_total"]):
            run.stop()
