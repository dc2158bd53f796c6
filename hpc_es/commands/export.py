"""Write a trained policy as a Keras model, with its observation normaliser inside, or an objective's best vector.

The best vector is written as OUTPUT.npy, float64[size], or OUTPUT.json, with its value and the parameters' names.

A .keras file loads with keras.models.load_model("policy.keras") and nothing of hpc_es: standard layers only. Its input
is float32[n, observations]; its output the actions within their bounds, or, where actions are Discrete, a logit for
each (the policy takes the largest; add the space's start). A recurrent policy takes float32[n, steps, observations]
and its memory, and gives the memory after them too: hpc_es/policies/lstm/keras_model.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpc_es.commands import TRUST
from hpc_es.core.errors import UserError
from hpc_es.report.best_vector import SUFFIXES, export_best
from hpc_es.report.export import export, require

SUFFIX = ".keras"


def arguments(parser: argparse.ArgumentParser) -> None:
    """From where, to where."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument(
        "output", metavar="OUTPUT", type=Path, help="the file to write: .keras, or of an objective .npy or .json"
    )
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: that of better evaluation)")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(arguments: argparse.Namespace) -> int:
    """Write the file, whole or not at all; UserError."""
    output: Path = arguments.output
    if output.suffix not in (SUFFIX, *SUFFIXES):
        known = ", ".join(map(repr, SUFFIXES))
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected {SUFFIX!r}, or of an objective {known}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    if output.suffix in SUFFIXES:
        export_best(arguments.path, output)
        sys.stderr.write(f"{output} written\n")
        return 0
    require()
    export(arguments.path, output, arguments.which, arguments.trust)
    sys.stderr.write(f"{output} written\n")
    return 0
