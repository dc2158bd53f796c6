"""A trained policy as a Keras model, with its observation normaliser inside."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.common.files import written
from hpc_es.errors import UserError

if TYPE_CHECKING:
    from hpc_es.load import Which


def require() -> None:
    """Raise UserError unless TensorFlow can be imported."""
    if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("keras") is None:
        raise UserError("export needs TensorFlow, which is not installed: pip install 'hpc_es[tensorflow]'")


def export(path: Path, output: Path, which: Which | None) -> None:
    """The policy of a run or checkpoint into a .keras file."""
    from hpc_es.load import load_policy

    policy = load_policy(path, which)
    kind = policy.config.policy.kind
    if importlib.util.find_spec(f"hpc_es.policies.{kind}_keras") is None:
        raise UserError(f"{path}: a policy of kind {kind!r} cannot be exported")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # nothing here is worth starting a GPU for
    build = importlib.import_module(f"hpc_es.policies.{kind}_keras").model
    _save(build(policy.policy, policy.source.theta, policy.source.normaliser), output)


def _save(model: object, output: Path) -> None:
    with written(output) as temporary:
        model.save(temporary)  # type: ignore[attr-defined]
