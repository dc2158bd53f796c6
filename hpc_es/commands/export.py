"""Write a trained policy as a Keras model, with its observation normaliser inside, or an objective's best vector.

The best vector is written as OUTPUT.npy, float64[size], or OUTPUT.json, with its value and the parameters' names.

A .keras file loads with keras.models.load_model("policy.keras") and nothing of hpc_es: standard layers only. Its input
is float32[n, observations] of the environment itself; its output the environment's actions within their bounds, or,
where actions are Discrete, a logit for each (the policy takes the largest; add the space's start), and where they are
MultiDiscrete the logits of one choice after the other; the command says how they are split. The wrappers of the
task are layers of the model; one that cannot be written so is refused. With --env wrapped the model is for the
environment with its wrappers. A recurrent policy takes float32[n, steps, observations] and its memory, and gives the
memory after them too: hpc_es/policies/networks/keras_models.py. With --value the last output is the value, [n, 1].

With --all OUTPUT is a directory: a file for each checkpoint, under its name, and best.keras.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from hpc_es.commands import TRUST
from hpc_es.core.errors import UserError
from hpc_es.report.best_vector import SUFFIXES, export_best
from hpc_es.report.export import SUFFIX, ExportOptions, export


def arguments(parser: argparse.ArgumentParser) -> None:
    """From where, to where."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument(
        "output", metavar="OUTPUT", type=Path, help="the file to write: .keras, or of an objective .npy or .json"
    )
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: that of better evaluation)")
    parser.add_argument(
        "--env",
        choices=("unwrapped", "wrapped"),
        default="unwrapped",
        help="what the model acts in: the environment itself, or with the wrappers of training (default: unwrapped)",
    )
    parser.add_argument("--value", action="store_true", help="also the value, of a policy trained by actor_critic")
    parser.add_argument("--all", action="store_true", help="every checkpoint of the run, into the directory OUTPUT")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, each whole or not at all; UserError."""
    output: Path = arguments.output
    options = ExportOptions(arguments.which, arguments.env, arguments.value, arguments.trust)
    if arguments.all:
        return _all(arguments.path, output, options)
    if output.suffix not in (SUFFIX, *SUFFIXES):
        known = ", ".join(map(repr, SUFFIXES))
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected {SUFFIX!r}, or of an objective {known}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    note = ""
    if output.suffix in SUFFIXES:
        export_best(arguments.path, output)
    else:
        note = export(arguments.path, output, options)
    sys.stderr.write(f"{output} written{note and f'; {note}'}\n")
    return 0


def _all(path: Path, folder: Path, options: ExportOptions) -> int:
    """Write a .keras file for each checkpoint of a run, under its name, and best.keras."""
    from hpc_es.api.evaluate import snapshots
    from hpc_es.storage.checkpoint_directory import BEST

    if options.which is not None:
        raise UserError("--all writes every checkpoint: leave --which out")
    if folder.suffix or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: expected a directory for the files of --all")
    for snapshot in map(Path, snapshots(path, options.trust)):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / snapshot.with_suffix(SUFFIX).name
        note = export(snapshot, file, dataclasses.replace(options, which="best" if snapshot.name == BEST else "last"))
        sys.stderr.write(f"{file} written{note and f'; {note}'}\n")
    return 0
