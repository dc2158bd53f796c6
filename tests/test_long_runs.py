"""What does not grow with the number of generations: memory, open files and threads of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import ROOT, python, script

SETTLED, END = 2500, 10_000  # generations
MEGABYTES = 4
PROGRAM = """
    import json, os, sys
    import hpc_es

    def seen():
        lines = open("/proc/self/status").read().splitlines()
        kilobytes = int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
        return kilobytes / 1024, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    config = {
        "task": {
            "env_id": "CartPole-v1",
            "max_episode_steps": 20,
            "observation_normalization": {"enabled": True, "probability": 0.5},
        },
        "policy": {"hidden_dims": [8]},
        "algorithm": {"population_size": 8},
        "noise": {"table_size": 100_000},
        "evaluation": {"interval": 1, "episodes": 2},
        "checkpoint": {"interval": 50},
        "report": {"tensorboard": True, "plot_interval_seconds": 0},
        "stop": {"generations": int(sys.argv[3])},
    }
    found = {}
    with hpc_es.train(config, sys.argv[1]) as run:
        for row in run:
            if row["generation"] + 1 in (int(sys.argv[2]), int(sys.argv[3])):
                found[row["generation"] + 1] = seen()
    print(json.dumps(found))
"""


@pytest.mark.long
def test_ten_thousand_generations_take_no_more_memory_than_a_quarter_of_them(tmp_path: Path) -> None:
    """With TensorBoard, evaluations and checkpoints; a table of offsets that were kept once grew by 0.7 kB each."""
    done = python([*script(PROGRAM), str(tmp_path / "run"), str(SETTLED), str(END)], cwd=ROOT, timeout_seconds=900)
    assert done.status == 0, str(done)
    found = json.loads(done.stdout.splitlines()[-1])
    (before, *files_before), (after, *files_after) = found[str(SETTLED)], found[str(END)]
    assert after - before < MEGABYTES, found
    assert files_after == files_before
