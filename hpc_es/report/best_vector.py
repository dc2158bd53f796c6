"""The best vector of an objective, from a checkpoint to the user: for `hpc-es inspect` and `hpc-es export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpc_es.core.data import Arrays
from hpc_es.core.errors import UserError
from hpc_es.storage.files import write_json, written
from hpc_es.tasks.functions.problem import BestVector, best_report, has_best

SUFFIXES = (".npy", ".json")


def described_best(master: Arrays, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"best_vector": ...} of a state's master arrays, or nothing; `config` is plain data."""
    if not has_best(master):
        return {}
    task = config.get("task") or {}
    return {"best_vector": best_report(master, tuple(task.get("parameters") or ()))}


def export_best(path: Path, output: Path) -> None:
    """Write the best vector of a run or checkpoint as .npy, float64[size], or .json; UserError where there is none."""
    import yaml

    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find

    snapshot = load(find(path))
    if not has_best(snapshot.outcome):
        raise UserError(f"{path}: expected a run of an objective, with a best vector; a policy is exported as .keras")
    if output.suffix == ".json":
        config = yaml.safe_load(snapshot.config_text)
        write_json(output, described_best(snapshot.outcome, config)["best_vector"])
        return
    with written(output) as temporary:
        np.save(temporary, BestVector.of(snapshot.outcome).x)
