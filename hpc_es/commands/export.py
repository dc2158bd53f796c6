"""Write a trained policy as a Keras model, with its observation normaliser inside.

The file loads with keras.models.load_model("policy.keras") and nothing of hpc_es: standard layers only. Its input is
float32[n, observations]; its output the actions within their bounds, or, where actions are Discrete, a logit for each
(the policy takes the largest; add the space's start).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.errors import UserError

if TYPE_CHECKING:
    from hpc_es.load import Which

SUFFIX = ".keras"


def arguments(parser: argparse.ArgumentParser) -> None:
    """From where, to where."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("output", metavar="OUTPUT.keras", type=Path, help="the file to write")
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: best if there is one)")


def run(arguments: argparse.Namespace) -> int:
    """Write the file, whole or not at all; UserError."""
    output: Path = arguments.output
    if output.suffix != SUFFIX:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected {SUFFIX!r}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("keras") is None:
        raise UserError("export needs TensorFlow, which is not installed: pip install 'hpc_es[tensorflow]'")
    export(arguments.path, output, arguments.which)
    sys.stderr.write(f"{output} written\n")
    return 0


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
    temporary = output.with_name(f".{output.stem}.{os.getpid()}.tmp{SUFFIX}")  # Keras looks at the suffix
    try:
        model.save(temporary)  # type: ignore[attr-defined]
        temporary.replace(output)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
