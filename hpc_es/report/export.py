"""A trained policy as a Keras model, with its observation normaliser inside."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.config.foreign import is_foreign
from hpc_es.core import extras
from hpc_es.core.errors import UserError
from hpc_es.storage.files import written

if TYPE_CHECKING:
    from hpc_es.report.saved_policy import Which


def require() -> None:
    """Raise UserError unless TensorFlow can be imported."""
    extras.require("export", "tensorflow", "keras")


def is_installed() -> bool:
    """Return whether TensorFlow can be imported; it is not imported here."""
    return all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "keras"))


def is_exportable(kind: str) -> bool:
    """Return whether policies of this kind have a Keras model."""
    return not is_foreign(kind) and importlib.util.find_spec(f"hpc_es.policies.{kind}.keras_model") is not None


def export(path: Path, output: Path, which: Which | None, trust: bool = False) -> None:
    """The policy of a run or checkpoint into a .keras file."""
    from hpc_es.report.saved_policy import load_policy

    policy = load_policy(path, which, trust)
    kind = policy.config.policy.kind
    if not is_exportable(kind):
        raise UserError(f"{path}: a policy of kind {kind!r} cannot be exported")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # nothing here is worth starting a GPU for
    build = importlib.import_module(f"hpc_es.policies.{kind}.keras_model").model
    _save(build(policy.policy, policy.source.theta, policy.source.normaliser), output)


def _save(model: object, output: Path) -> None:
    with written(output) as temporary:
        model.save(temporary)  # type: ignore[attr-defined]
