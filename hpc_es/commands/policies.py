"""Commands that use trained policies: eval, export."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_es.core.arguments import (
    TRUST,
    WHICH,
    expanded_path,
    member_name,
    seed,
    whole_number,
    written_file,
)
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.paths import shown
from hpc_es.core.streams import say_error

if TYPE_CHECKING:
    from hpc_es.api.evaluate import SourceT
    from hpc_es.core.data import JsonObject
    from hpc_es.report.export import ExportOptions


GRID = re.compile("[1-9][0-9]?x[1-9][0-9]?")


def add_which(parser: argparse.ArgumentParser) -> None:
    """Add --which and --member, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--which", choices=("best", "last"), help=WHICH)
    group.add_argument(
        "--member",
        dest="which",
        type=member_name,
        metavar="NAME",
        help="a member of the front or archive of a run, such as g12j7, as front.csv or archive.csv "
        "lists them; of an archive also cell=3,4 or measures=0.2,0.5",
    )


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the policy, the episodes and the output."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_CHECKPOINT",
        type=expanded_path,
        help="run directory, checkpoint file, or directory of repetitions",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="task.key=value",
        help="changed setting of the task, or report.info=[key]",
    )
    parser.add_argument(
        "--episodes",
        "--evaluations",
        type=whole_number,
        metavar="N",
        help="number of episodes, or of evaluations of a vector (default: 100, of a vector 10)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of the episodes (default: 0)"
    )
    add_which(parser)
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; everything else goes to stderr"
    )
    parser.add_argument(
        "--actions",
        choices=("greedy", "sampled"),
        default="greedy",
        help="actions of a policy with probabilities: most probable or sampled (default: greedy)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="evaluate every checkpoint of the run and best.h5, as CSV",
    )
    parser.add_argument(
        "--members",
        metavar="all|ROWSxCOLUMNS",
        type=members_text,
        help="evaluate all members of the archive, as CSV; with --video, a grid of members such as "
        "3x4",
    )
    parser.add_argument(
        "--output",
        type=written_file,
        metavar="FILE",
        help="CSV file of --all or --members all (default: stdout), or of the repetitions",
    )
    parser.add_argument(
        "--video", type=written_file, metavar="FILE", help="record the first episode: .gif or .mp4"
    )


def members_text(text: str) -> str:
    """Return "all", or a grid such as 3x4; raise argparse.ArgumentTypeError for other text."""
    if text != "all" and not GRID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected all, or a grid such as 3x4, found {text!r}")
    return text


def run_eval(arguments: argparse.Namespace) -> int:
    """Evaluate a trained policy in noise-free episodes, or the vector that a run has found.

    Of a function or program it evaluates the answer of the run again, with random numbers that the
    run has not had, and prints the mean with its standard error beside the value that the run has
    recorded. Of a directory of repetitions it evaluates each of them, and prints their mean with a
    95 % bootstrap interval over repetitions.

    The same checkpoint, seed and number of episodes give the same numbers. Returns do not include
    `task.reward_offset`. Overrides change the task, such as task.max_episode_steps=200 or
    task.env_kwargs.gravity=5, or the numbers of an episode's info whose means are printed, such as
    report.info=[x_position].

    --all evaluates every checkpoint, and --members all every member of an archive, with the score
    of the archive that the results make. Under MPI (mpiexec -n 4 python -m hpc_es eval RUN --all)
    the ranks share checkpoints, members and repetitions, and the numbers stay the same.

    Exit status 1: every episode failed.
    """
    from hpc_es.report import video
    from hpc_es.storage.results import holds_repetitions

    is_several = holds_repetitions(arguments.path) and not (arguments.all or arguments.members)
    _require_compatible_options(arguments, is_several)
    require_overrides(arguments.overrides)
    if arguments.all or arguments.members == "all" or is_several:
        return _eval_all(arguments, is_several)
    if arguments.members:
        return _record_members(arguments)
    if arguments.video:
        video.prepare(arguments.video)  # before a simulator is imported
    from hpc_es.api.evaluate import (
        EvaluationRequest,
        choose_device,
        evaluate,
        has_failed,
        seeds,
        usual_episodes,
    )
    from hpc_es.mpi.world import World
    from hpc_es.trained.answer import StoredAnswer, read_to_evaluate
    from hpc_es.trained.stored import require_stochastic

    with stdout_to_stderr():
        source = with_overrides(
            read_to_evaluate(arguments.path, arguments.which, arguments.trust), arguments.overrides
        )
        if arguments.actions == "sampled":
            require_stochastic(source.config)
        choose_device(World("none"), source.config)
        if arguments.video:  # first, since rendering may be impossible here
            if isinstance(source, StoredAnswer):
                raise UserError(f"task {source.config.task.kind}: has no video: leave --video out")
            video.write_video(source, seeds(arguments.seed, [0])[0], arguments.video)
        episodes = arguments.episodes or usual_episodes(source)
        result = evaluate(source, EvaluationRequest(episodes, arguments.seed, arguments.actions))
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else evaluation_text(result))
    return 1 if has_failed(result) else 0


def _require_compatible_options(arguments: argparse.Namespace, is_several: bool) -> None:
    if is_several and arguments.video:
        raise UserError(
            f"--video shows one run, and {arguments.path} holds repetitions: name one of them"
        )
    if arguments.all and arguments.members:
        raise UserError("--all is for checkpoints, --members for members: expected one of them")
    is_table, is_grid = arguments.all or arguments.members == "all", False
    if arguments.members and not is_table:
        is_grid = True
        if not arguments.video:
            raise UserError(
                f"--members {arguments.members} is a grid for a video: add --video FILE, or "
                "use --members all"
            )
    given = {
        "--which or --member": arguments.which and (is_table or is_grid),
        "--json": arguments.json and (is_table or is_grid),
        "--video": arguments.video and is_table,
    }
    for option in (name for name, is_wrong in given.items() if is_wrong):
        what = "writes a table of all checkpoints" if arguments.all else "is for several members"
        raise UserError(
            f"{'--all' if arguments.all else f'--members {arguments.members}'} {what}: leave {option} out"
        )
    if arguments.output and not (is_table or is_several):
        raise UserError(
            "--output is the table of --all, --members all and repetitions: leave it out"
        )
    if arguments.video and arguments.actions == "sampled":
        raise UserError("--video shows greedy actions: leave --actions sampled out")


def _eval_all(arguments: argparse.Namespace, is_several: bool) -> int:
    """Evaluate every checkpoint, every member of an archive, or every repetition, on all ranks,
    inside the guard; rank 0 writes the table.
    """
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.api.evaluate import (
            EvaluationRequest,
            evaluate_all,
            has_failed,
            prepare_all,
            prepare_repetitions,
            table,
        )
        from hpc_es.api.evaluate_members import evaluate_members, prepare_members, scores
        from hpc_es.mpi.connect import connect
        from hpc_es.storage.files import write_text
        from hpc_es.training.collective import CollectiveExit, on_rank_0

        def changed(source: SourceT) -> SourceT:
            return with_overrides(source, arguments.overrides)

        def prepare() -> JsonObject:
            path, trust = arguments.path, arguments.trust
            if is_several:
                return prepare_repetitions(path, changed, trust, which=arguments.which)
            return (prepare_members if arguments.members else prepare_all)(path, changed, trust)

        world = connect()
        try:
            with stdout_to_stderr():
                _, prepared = on_rank_0(world, prepare, dict)
        except CollectiveExit as ended:
            if world.rank == 0:
                say_error(f"hpc-es: {ended.reason.text}\n")
            return ended.reason.status
        episodes = arguments.episodes or prepared["episodes"]
        asked = EvaluationRequest(episodes, arguments.seed, arguments.actions)
        with stdout_to_stderr():
            evaluate = evaluate_members if arguments.members else evaluate_all
            rows = evaluate(world, prepared, asked, changed)
        if world.rank == 0 and arguments.members:
            before, after = scores(arguments.path, rows)
            say_error(f"archive: {before}\ncorrected by {asked.episodes} episodes: {after}\n")
        if world.rank == 0 and arguments.output:
            write_text(arguments.output, table(rows))
        if world.rank == 0 and is_several:
            sys.stdout.write(_repetitions_output(rows, arguments.json))
        elif world.rank == 0 and not arguments.output:
            sys.stdout.write(table(rows))
        return 1 if all(map(has_failed, rows)) else 0

    guarded(body)


def _repetitions_output(rows: Sequence[JsonObject], is_json: bool) -> str:
    """Return one line for each repetition, and one for each mean over them."""
    from hpc_es.api.evaluate import over_repetitions
    from hpc_es.core.text_table import aligned
    from hpc_es.report.statistics import FEW

    summary = over_repetitions(rows)
    if is_json:
        return json.dumps({"repetitions": rows, "over_repetitions": summary}) + "\n"
    beside = ("return_std", "score_std", "standard_error", "recorded_value", "failed", "generation")
    names = ["repetition", *summary, *(name for name in beside if name in rows[0])]
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    lines = [*aligned([names, *cells], range(1, len(names))), ""]
    for name, found in summary.items():
        text = f"{name}: {found['mean']:.6g} over {found['repetitions']} repetitions"
        if found["low"] is not None:
            text += f", 95 % bootstrap interval {found['low']:.6g} to {found['high']:.6g}"
        lines.append(text)
    if len(rows) < FEW:
        lines.append(
            f"Intervals of fewer than {FEW} repetitions are too short, of 2 there is none."
        )
    return "".join(f"{line}\n" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def _record_members(arguments: argparse.Namespace) -> int:
    """Write a video of a grid of members of an archive."""
    from hpc_es.report import video

    rows, columns = map(int, arguments.members.split("x"))
    video.prepare(arguments.video)
    from hpc_es.api.evaluate import choose_device, seeds
    from hpc_es.mpi.world import World
    from hpc_es.report.archive_video import members_in_grid, write_grid
    from hpc_es.storage.members import read_archive
    from hpc_es.trained.stored import read_evaluated

    with stdout_to_stderr():
        archive = read_archive(arguments.path)
        names = members_in_grid(archive, rows, columns)
        first = with_overrides(
            read_evaluated(arguments.path, next(filter(None, names)), arguments.trust),
            arguments.overrides,
        )
        choose_device(World("none"), first.config)
        write_grid(
            first, archive, names, columns, seeds(arguments.seed, [0])[0], output=arguments.video
        )
    listed = ["-" if name is None else name for name in names]
    for start in range(0, len(listed), columns):
        say_error(f"{'  '.join(listed[start : start + columns])}\n")
    say_error(f"{shown(arguments.video)} written\n")
    return 0


def require_overrides(overrides: Sequence[str]) -> None:
    """Raise UserError unless these are settings of the task or `report.info`, such as for a second
    run.
    """
    for item in overrides:
        if item.startswith(("task.", "report.info=", "report.info.")) and "=" in item:
            continue
        if Path(item).exists():
            raise UserError(
                f"expected one run, or the directory of its repetitions, found a second one, {item!r}: evaluate each by a "
                "command of its own; hpc-es results compares what several runs have found"
            )
        raise UserError(
            f"expected task.key=value or report.info=[key], found {item!r}: the policy itself "
            "cannot be changed"
        )


def with_overrides(source: SourceT, overrides: Sequence[str]) -> SourceT:
    """Return the policy or vector with settings of its task changed.

    Raises:
        ConfigError: an override is wrong; or UserError.
    """
    require_overrides(overrides)
    if not overrides:
        return source
    from hpc_es.config.loading import validate
    from hpc_es.config.resolved import resolved
    from hpc_es.config.yaml_text import override
    from hpc_es.storage.trust import own_files
    from hpc_es.training.compatibility import info_mismatches

    config = validate(override(resolved(source.config), overrides), own_files())
    if problems := list(info_mismatches(config)):
        raise ConfigError(problems)
    return dataclasses.replace(source, config=config)


def evaluation_text(result: JsonObject) -> str:
    """Return the numbers as text, one per line."""
    width = max(12, *map(len, result))
    return "".join(f"{name:{width}} {_cell(value)}\n" for name, value in result.items())


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what environments print, from Python or C, to stderr: stdout is for the result."""
    sys.stdout.flush()
    original = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(original, 1)
        os.close(original)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source, the file and the form."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_CHECKPOINT",
        type=expanded_path,
        help="run directory or checkpoint file",
    )
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        type=written_file,
        help="file to write: .keras, .onnx, .pt, .safetensors, .py or .npz for a policy, .npy or "
        ".json for the best vector, such as its parameters",
    )
    add_which(parser)
    parser.add_argument(
        "--env",
        choices=("unwrapped", "wrapped"),
        default="unwrapped",
        help="environment that the model acts in: unwrapped, or with the wrappers of training "
        "(default: unwrapped)",
    )
    parser.add_argument(
        "--value", action="store_true", help="include the output of a policy's value function"
    )
    parser.add_argument(
        "--all", action="store_true", help="export every checkpoint into the directory OUTPUT"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run_export(arguments: argparse.Namespace) -> int:
    """Export a trained policy as a model, a Python file or named arrays, or the best vector.

    A .py file has the weights of an mlp, lstm or cnn and a function policy(observation), and needs
    NumPy alone; a recurrent policy also has reset(), to be called at the start of an episode.

    An .onnx file has the same policies for other runtimes: its input is observation, [batch,
    *shape], and its output action. Of each layer of a recurrent policy NAME_h and NAME_c are
    inputs, zeros at the start of an episode, and next_NAME_h and next_NAME_c outputs, [batch,
    units]. Modules of PyTorch are written for one observation, [1, *shape], with their memory as
    memory_0 and next_memory_0 and so on; this needs onnxscript, too.

    An .npz file has the parameters of any policy by name, as float32 arrays, and observation_mean,
    observation_std and observation_clip if observations are normalised.

    A .pt or .safetensors file has the state_dict of a module of PyTorch, for its load_state_dict.

    The best vector is written as OUTPUT.npy: float64[size] for functions and external programs, in
    the dtype of the task for other vectors, and float32[params] for policies. OUTPUT.json also has
    its value, or return, and generation.

    The .keras file contains the observation normaliser and standard layers only, so that
    keras.models.load_model("policy.keras") needs nothing of hpc_es. Its input is float32[n,
    observations] of the environment. Its output depends on the action space: actions within their
    bounds for Box; one logit per action for Discrete (the policy takes the largest; add the start
    of the space); the logits of one choice after the other for MultiDiscrete (the command prints
    how they are split).

    The wrappers of the task become layers of the model; a wrapper that cannot be expressed as
    layers is refused. With --env wrapped the model expects the wrapped environment. A recurrent
    policy takes float32[n, steps, observations] and its memory, and also returns the new memory:
    hpc_es/policies/networks/keras_models.py. With --value the last output is the value, [n, 1].

    With --all, OUTPUT is a directory with one file per checkpoint, and best.keras.
    """
    from hpc_es.report import export as exports
    from hpc_es.report.export import (
        ARRAYS_SUFFIX,
        NUMPY_SUFFIX,
        ONNX_SUFFIX,
        SUFFIX,
        VECTOR_SUFFIXES,
        WEIGHT_SUFFIXES,
        ExportOptions,
    )

    output: Path = arguments.output
    options = ExportOptions(arguments.which, arguments.env, arguments.value, arguments.trust)
    if arguments.all:
        return _export_all(arguments.path, output, options)
    policies = (SUFFIX, NUMPY_SUFFIX, ONNX_SUFFIX, ARRAYS_SUFFIX, *WEIGHT_SUFFIXES)
    if output.suffix not in (*policies, *VECTOR_SUFFIXES):
        vector = ", ".join(map(repr, VECTOR_SUFFIXES))
        raise UserError(
            f"{output}: the suffix is {output.suffix!r}, expected "
            f"{', '.join(map(repr, policies[:-1]))} or {policies[-1]!r}, "
            f"or {vector} for a vector"
        )
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    note = ""
    if output.suffix in VECTOR_SUFFIXES:
        exports.export_vector(arguments.path, output, options)
    elif output.suffix == ARRAYS_SUFFIX:
        exports.export_arrays(arguments.path, output, options)
    elif output.suffix == NUMPY_SUFFIX:
        exports.export_numpy(arguments.path, output, options)
    elif output.suffix == ONNX_SUFFIX:
        exports.export_onnx(arguments.path, output, options)
    elif output.suffix in WEIGHT_SUFFIXES:
        note = exports.export_weights(arguments.path, output, options)
    else:
        note = exports.export(arguments.path, output, options)
    say_error(f"{shown(output)} written{note and f'; {note}'}\n")
    return 0


def _export_all(path: Path, folder: Path, options: ExportOptions) -> int:
    """Write one .keras file per checkpoint of a run, with its name, and best.keras."""
    from hpc_es.core.run_files import make_directory
    from hpc_es.report.export import SUFFIX, export
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import all_full
    from hpc_es.storage.results import require_run
    from hpc_es.trained.theta import check_snapshot

    if options.which is not None:
        raise UserError("--all exports every checkpoint: leave --which out")
    if folder.suffix or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: expected a directory for the files of --all")
    require_run(path)
    files = all_full(path)
    for snapshot in files:
        check_snapshot(snapshot, load(snapshot), options.trust)
    for snapshot in files:
        make_directory(folder)
        file = folder / snapshot.with_suffix(SUFFIX).name
        note = export(snapshot, file, options)
        say_error(f"{shown(file)} written{note and f'; {note}'}\n")
    return 0
