"""The job of `python -m hpc_es.main` and `hpc-es train`: one experiment with its repetitions.

The command line is here, too. Repetitions differ only in their random numbers. The ranks are split
into groups, each with its own rank 0, and the repetitions into contiguous shares: first of array
tasks, then of the groups of a task. Finished repetitions are skipped and unfinished ones are
resumed. Rank 0 of the world waits for the other groups and writes the summary.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from hpc_es.config.resolved import completed, dump, identity, named_user_kinds, plain_data, resolved
from hpc_es.config.schema import Config
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import INTERRUPTED, ConfigError, UserError, failure_from_error
from hpc_es.core.paths import current_directory
from hpc_es.core.run_files import make_directory, read_json, read_text, require_own_entries
from hpc_es.core.slurm import this_run
from hpc_es.core.streams import say, say_error
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.launch import abandon_timeout
from hpc_es.mpi.world import World
from hpc_es.training.build import decide_device, shared_noise, valid_config
from hpc_es.training.collective import (
    CollectiveExit,
    ExitReason,
    config_from_message,
    config_message,
    on_all_ranks,
    on_rank_0,
)
from hpc_es.training.compatibility import device_request
from hpc_es.training.run import OnRow, RunRequest, run_once, with_recovery

if TYPE_CHECKING:  # ranks other than 0 need neither argparse nor the files of the run
    import argparse

    from hpc_es.storage.results import Shard
    from hpc_es.training.run_directory import Resume

MESSAGE_SECONDS = 60.0  # between two messages about unfinished repetitions


def run_experiment(
    world: World,
    signals: Signals,
    config: Config,
    directory: Path,
    *,
    resume: Resume = "auto",
    shard: Shard | None = None,
    on_row: OnRow | None = None,
    workers: int | None = None,
) -> ExitReason:
    """Run all repetitions of this shard; every rank calls this and returns the same reason.

    A single repetition runs in `directory` itself, several in directory/repetition_0000 and so on.
    `on_row(repetition, row)` is called on rank 0 of a group after each generation; if it returns
    False, that repetition ends early. `workers` processes evaluate if the world has no other ranks.
    """

    def run(restarted: bool) -> ExitReason:
        mode: Resume = "auto" if restarted else resume
        if config.repetitions == 1:
            request = RunRequest(
                directory, mode, on_row=on_row, ends_program=on_row is None, workers=workers
            )
            return run_once(world, signals, config, request)[0]
        try:
            return Repetitions(world, signals, config, directory, shard, on_row, workers).run(mode)
        except CollectiveExit as ended:
            return ended.reason

    try:
        on_all_ranks(lambda: decide_device(config, world))
        if workers is not None:
            from hpc_es.training.pool import require_pool

            on_all_ranks(lambda: require_pool(config))
    except CollectiveExit as ended:
        return ended.reason
    return with_recovery(world, run) if config.mpi.fault_tolerance else run(restarted=False)


@dataclass(frozen=True)
class Repetitions:
    """Several repetitions in one directory; `shard` is None outside of a job array."""

    world: World
    signals: Signals
    config: Config
    directory: Path
    shard: Shard | None
    on_row: OnRow | None
    workers: int | None = None

    def run(self, resume: Resume) -> ExitReason:
        """Open the directory, run the share of this group, and wait for the others."""
        from hpc_es.storage.results import Shard

        on_rank_0(self.world, lambda: self._open(resume))
        groups, rank, size = self.config.repetition_groups, self.world.rank, self.world.size
        shared = shared_noise(self.config, self.world)
        group = self.world.split(groups)
        part = Shard(next(g for g in range(groups) if rank < -(-size * (g + 1) // groups)), groups)
        own = self.task_share()
        reason = ExitReason(0)
        for index in part.share(len(own)):
            repetition = own.start + index
            try:
                one = contained(
                    group, partial(self._run_repetition, group, part, repetition, shared)
                )
            except CollectiveExit as ended:  # the other groups are waited for all the same
                one = ended.reason
            reason = combine(reason, one)
            if one.status == INTERRUPTED:
                break
        return self._wait_for_groups(reason)

    def path(self, repetition: int) -> Path:
        """Return the run directory of a repetition."""
        return self.directory / f"repetition_{repetition:04d}"

    def task_share(self) -> range:
        """Return the repetitions of this task of a job array."""
        return (
            self.shard.share(self.config.repetitions)
            if self.shard
            else range(self.config.repetitions)
        )

    def _open(self, resume: str) -> None:
        """Create the directory, on rank 0. Raise UserError if the repetitions cannot run in it."""
        from hpc_es.storage import results
        from hpc_es.storage.compare import differences
        from hpc_es.storage.files import write_text, writing

        directory, config = self.directory, self.config
        if config.repetition_groups > self.world.size:
            raise ConfigError(
                [
                    (
                        "repetition_groups",
                        f"is {config.repetition_groups}, but the job has {self.world.size} ranks: each "
                        "group needs one",
                    )
                ]
            )
        if (directory / "checkpoints").exists():
            raise UserError(
                f"{directory} holds a single run, not repetitions: choose another --output"
            )
        is_used = (directory / results.SHARDS).exists() or any(directory.glob("repetition_*"))
        if resume == "never" and is_used:
            raise UserError(
                f"{directory} already holds repetitions, and --resume is never: choose another "
                "--output, or --resume auto"
            )
        if resume == "require" and not is_used:
            raise UserError(f"--resume require: there are no repetitions in {directory}")
        with writing(directory):
            make_directory(directory)
            require_own_entries(directory)
        file, new = directory / "config.yaml", identity(config)
        old = (
            completed(plain_data(read_text(file)), named_user_kinds(resolved(config)))
            if file.exists()
            else new
        )
        if different := differences(old, new, "in the directory"):
            lines = "\n  ".join(different)
            raise UserError(
                f"{directory} holds another experiment; these may not change:\n  {lines}\nchoose another --output"
            )
        for row in results.read_results(directory):
            budgets = ("stop", row["budget"], results.budget(config))
            for key, before, now in (
                ("repetitions", row["repetitions"], config.repetitions),
                budgets,
            ):
                if before != now:
                    raise ConfigError(
                        [
                            (
                                key,
                                f"is {json.dumps(now)}, but finished repetitions of {directory} have "
                                f"{json.dumps(before)}: results would not be comparable; choose "
                                "another --output",
                            )
                        ]
                    )
        write_text(file, dump(config))
        self._write_status("running")

    def _run_repetition(
        self, group: World, part: Shard, repetition: int, shared: object
    ) -> ExitReason:
        """Run one repetition and add its result, unless there is one already."""
        from hpc_es.storage import results

        def is_done() -> bool:
            return repetition in {row["repetition"] for row in results.read_results(self.directory)}

        if on_rank_0(group, is_done, lambda done: {"done": done})[1]["done"]:
            return ExitReason(0)
        shows_progress = self.world.rank == 0
        request = RunRequest(
            self.path(repetition),
            "auto",
            repetition,
            shared,
            self.on_row,
            shows_progress,
            workers=self.workers,
        )
        reason, result = run_once(group, self.signals, self.config, request)
        if reason.in_use and self.shard is not None:  # another task of the array runs it
            return ExitReason(0, reason.text)
        if result is not None:
            task = self.shard or results.Shard()
            shard = results.Shard(task.index * part.count + part.index, task.count * part.count)
            results.append(self.directory, shard, result)
            if shows_progress:
                self._write_status("running")
        return (
            replace(reason, text=f"repetition {repetition}: {reason.text}")
            if reason.status
            else reason
        )

    def _wait_for_groups(self, reason: ExitReason) -> ExitReason:
        """Wait for the other groups, and write the summary on rank 0; return the common reason."""
        own = json.dumps({"status": reason.status, "text": reason.text}).encode()
        with self.world.polling(GroupPoll(self)):
            gathered = self.world.allgather(np.frombuffer(own, np.uint8))
        for other in gathered:
            reason = combine(reason, ExitReason(**json.loads(other.tobytes())))
        if self.world.rank == 0:
            self._summarize(reason)
        return reason

    def give_up(self) -> NoReturn:
        """End all groups; what they have saved is kept."""
        if self.world.rank == 0:
            self._write_status(
                "interrupted",
                exit_status=INTERRUPTED,
                reason="a second signal while other groups trained",
            )
        self.world.abort(INTERRUPTED)

    def _summarize(self, reason: ExitReason) -> None:
        from hpc_es.storage import results
        from hpc_es.storage.files import finite, write_json

        rows = results.read_results(self.directory)
        summary = results.summary(
            rows, self.config.repetitions, self.config.setup.offers.goal or "maximise"
        )
        write_json(self.directory / "summary.json", finite(summary))
        status = {0: "finished", INTERRUPTED: "interrupted"}.get(reason.status, "failed")
        self._write_status(status, exit_status=reason.status, reason=reason.text)
        if rows and self.config.report.plot_interval_seconds:
            from hpc_es.report.plot import plot

            plot([self.path(row["repetition"]) for row in rows], self.directory / "curve.png")
        say(results.summary_text(summary))
        if reason.status == INTERRUPTED:  # perhaps in another group
            say(f"interrupted ({reason.text}); the same command resumes the run\n")

    def _write_status(self, status: str, **more: object) -> None:
        """Replace the status file of this task, which scripts read."""
        from hpc_es.storage.files import write_json

        own = self.task_share()
        generations = sum(finished_generations(self.path(repetition)) for repetition in own)
        values = {"status": status, "generation": generations, "repetitions": list(own)}
        write_json(
            self.directory / status_name(self.shard), {**values, **more, **this_run(os.environ)}
        )


class GroupPoll:
    """Called repeatedly while a rank waits for the other groups."""

    def __init__(self, repetitions: Repetitions) -> None:
        self._repetitions = repetitions
        self._last_message = time.monotonic()
        self._give_up_at = math.inf

    def __call__(self) -> None:
        """Give up soon after a second signal, as a rank of another group may be dead.

        Rank 0 lists what is missing.
        """
        now, r = time.monotonic(), self._repetitions
        if r.signals.count() >= 2:
            self._give_up_at = min(self._give_up_at, now + abandon_timeout(os.environ))
        if now >= self._give_up_at:
            r.give_up()
        if r.world.rank != 0 or now - self._last_message < MESSAGE_SECONDS:
            return
        from hpc_es.storage import results

        self._last_message = now
        done = {row["repetition"] for row in results.read_results(r.directory)}
        missing = [n for n in r.task_share() if n not in done]
        items = ", ".join(f"{n} (generation {finished_generations(r.path(n))})" for n in missing)
        say(f"waiting for repetitions {items}\n")


def contained(world: World, run: Callable[[], ExitReason]) -> ExitReason:
    """Return the reason of one of several runs; an exception ends this run only.

    With several ranks it ends the job, because the other ranks are within the run; the same command
    continues.
    """
    if world.size > 1:
        return run()
    try:
        return run()
    except CollectiveExit as ended:
        return ended.reason
    except UserError as error:
        return ExitReason(error.status, str(error))
    except Exception as error:
        say_error("".join(traceback.format_exception(error)))
        return ExitReason(1, failure_from_error(error).text)


def combine(one: ExitReason, other: ExitReason) -> ExitReason:
    """Return the reason with the higher priority.

    That is interrupted, since the same command then resumes, before failed.
    """
    order = [0, 1, 2, INTERRUPTED]
    return max(
        one, other, key=lambda reason: order.index(reason.status) if reason.status in order else 1
    )


def status_name(shard: Shard | None) -> str:
    """Return the name of the status file of an array task, or of the whole experiment."""
    return (
        "status.json"
        if shard is None or shard.count == 1
        else f"status_{shard.index}_of_{shard.count}.json"
    )


def finished_generations(run: Path) -> int:
    """Return the number of finished generations in the status file of a run, 0 without one."""
    try:
        return int(read_json(run / "status.json")["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line of `python -m hpc_es.main`."""
    from hpc_es.core.arguments import Parser

    p = Parser(
        prog="python -m hpc_es.main",
        description="Train; the same command again resumes where the run stopped. Also: hpc-es train",
        epilog="exit status: 0 finished, 2 wrong command or config, 75 interrupted (run it again), 1 failed",
    )
    add_arguments(p)
    return p


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job: the config, its overrides, and how to run it."""
    from hpc_es.core.arguments import config_source, expanded_path, whole_number

    parser.add_argument(
        "config",
        metavar="CONFIG",
        type=config_source,
        help="YAML file of the experiment (hpc-es options lists the keys), or config string: "
        "env=c(...),agent=c(...)",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="changed setting, such as algorithm.sigma=0.1; the value is YAML",
    )
    parser.add_argument(
        "--output", type=expanded_path, metavar="DIR", help="run directory (default: runs/<name>)"
    )
    parser.add_argument(
        "--resume",
        choices=("auto", "never", "require"),
        default="auto",
        help="auto: resume if DIR has a checkpoint; never: refuse a DIR with a run; require: refuse "
        "a DIR without one",
    )
    parser.add_argument(
        "--shard",
        metavar="i/n",
        help="run part i of n of the repetitions, i from 0 (default: the index in a SLURM job "
        "array, or all)",
    )
    parser.add_argument(
        "--workers",
        type=whole_number,
        metavar="N",
        help="without MPI: number of processes on this machine that evaluate",
    )
    parser.add_argument(
        "--check", action="store_true", help="validate config, environment and policy; do not train"
    )
    parser.add_argument(
        "--ranks",
        type=whole_number,
        metavar="N",
        help="with --check: number of ranks; report whether all of them will have work",
    )
    parser.add_argument(
        "--no-call",
        dest="call",
        action="store_false",
        help="with --check: do not call task.function",
    )


def has_workers(words: Sequence[str]) -> bool:
    """Whether these words of a command line ask for workers in place of MPI.

    MPI then is not initialised.
    """
    return any(word.partition("=")[0] == "--workers" for word in words)


def run_job(read_arguments: Callable[[], argparse.Namespace]) -> int:
    """Prepare and train on every rank, and return the exit status.

    The arguments are read on rank 0.
    """
    world = connect() if not has_workers(sys.argv) else World("none")
    signals = Signals()
    try:
        _, message = on_rank_0(world, lambda: _job_message(read_arguments()), dict)
        config, shard = config_from_message(world, message), None
        if message["check"]:
            _check(world, config, **message["check"])
        if message["shard"]:
            from hpc_es.storage.results import Shard

            shard = Shard(*message["shard"])
        output, resume, workers = Path(message["output"]), message["resume"], message["workers"]
        reason = run_experiment(
            world, signals, config, output, resume=resume, shard=shard, workers=workers
        )
    except CollectiveExit as ended:
        reason = ended.reason
    if world.rank == 0 and reason.text and reason.status != INTERRUPTED:
        say_error(f"hpc_es: {reason.text}\n")
    return reason.status


def _job_message(options: argparse.Namespace) -> JsonObject:
    """Return the message with the job for all ranks; called on rank 0."""
    from hpc_es.config.loading import read
    from hpc_es.storage.results import Shard

    here = current_directory()  # code of the user may change it as soon as it is imported
    config = valid_config(read(options.config, options.overrides), options.output)
    shard = Shard.parse(options.shard) if options.shard else None
    if shard is not None and config.repetitions == 1:
        raise UserError(
            "--shard needs several repetitions, and the config has one: set repetitions"
        )
    if shard is None and config.repetitions > 1:
        shard = Shard.of_array(os.environ)
    if options.ranks is not None and not options.check:
        raise UserError(
            "--ranks is only for --check; the launcher sets the ranks of a run: mpiexec -n 4, srun -n 64"
        )
    if options.workers is not None:
        from hpc_es.training.pool import alone

        alone(options.workers)
    output = str(here / options.output) if options.output else None
    return {
        **config_message(config),
        "output": output or str(here / str(config.output)),
        "resume": options.resume,
        "workers": options.workers,
        "shard": astuple(shard) if shard else None,
        "check": {"ranks": options.ranks, "output": output, "call": options.call}
        if options.check
        else None,
    }


def _check(
    world: World, config: Config, ranks: int | None, output: str | None, call: bool
) -> NoReturn:
    """Check the number of GPUs and, on rank 0, the config, and raise CollectiveExit.

    The arguments are for `check`.
    """
    from hpc_es.devices.decision import check_number_of_gpus
    from hpc_es.training.check import check

    request = device_request(config)
    if request is not None and world.size > 1:
        on_all_ranks(lambda: check_number_of_gpus(world, request))
    on_rank_0(
        world, lambda: ExitReason(check(config, ranks, Path(output) if output else None, call))
    )
    raise AssertionError("on_rank_0 raises CollectiveExit")
