"""Print the losses of a policy gradient and the programs of each batch,
and save the parameters regularly.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import hpc_es
from hpc_es.api.train import TrainingRun

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/watched")
config = {
    "seed": 1,
    "task": {"kind": "programs", "name": "reverse", "max_code_length": 20},
    "algorithm": {"kind": "policy_gradient", "batch_size": 64},
    "stop": {"generations": 20},
}


def after_step(sample: Mapping[str, np.ndarray], loss: Mapping[str, float]) -> None:
    """Print the loss and the best program of the last batch; called on rank 0."""
    best = sample["rewards"].argmax()
    print(
        f"loss {loss['loss']:8.3f}  best reward {sample['rewards'][best]:.3f}  tokens {sample['tokens'][best][:8]}"
    )


def keep(generation: int, run: TrainingRun) -> None:
    """Save the parameters of every tenth generation; called on rank 0."""
    np.save(run.directory / f"theta_{generation:06d}.npy", run.theta)


with hpc_es.train(config, directory, triggers=[(keep, 10)], after_train_step=after_step) as run:
    for row in run:
        if row["generation"] == 0:
            print("the next batch, before it is learned from:", run.loss())
