"""An experiment and its repetitions, which differ in their random numbers only.

The ranks are split into groups, each with a master of its own, and the repetitions into contiguous shares: of array
tasks first, then of the groups of a task. What is finished is not run again, what is half finished carries on. World
rank 0, the chief, waits for the other groups, says what is still out, and writes the summary.


The job of `python -m hpc_es.main` and `hpc-es train`: its command line, and how every rank runs it."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hpc_es.config.loading import read
from hpc_es.config.resolved import completed, dump, identity, plain_data, resolved
from hpc_es.config.schema import Config
from hpc_es.config.sources import named_user_kinds
from hpc_es.core.arguments import Parser, whole_number
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.slurm import this_run
from hpc_es.mpi.connect import connect
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.launch import abandon_timeout
from hpc_es.mpi.world import World
from hpc_es.storage.compare import differences
from hpc_es.storage.files import write_json, write_text, writing
from hpc_es.storage.shard import Shard
from hpc_es.training.build import shared_noise, valid_config
from hpc_es.training.collective import (
    INTERRUPTED,
    CollectiveExit,
    ExitReason,
    config_from_message,
    config_message,
    on_rank_0,
)
from hpc_es.training.run import OnRow, RunRequest, run_once, with_recovery

SAY_SECONDS = 60.0  # between two messages of what is still out


def run_experiment(
    world: World,
    signals: Signals,
    config: Config,
    directory: Path,
    resume: Any = "auto",
    shard: Shard | None = None,
    on_row: OnRow | None = None,
) -> ExitReason:
    """Run all repetitions of this shard to their end; every rank calls this and gets the same answer.

    One repetition is run in `directory` itself, more in directory/repetition_0000 and so on. `on_row(repetition, row)`
    is called on rank 0 of a group after each generation; if it returns False that repetition ends early.
    """

    def run(again: bool) -> ExitReason:
        how: Any = "auto" if again else resume
        if config.repetitions == 1:
            return run_once(world, signals, config, RunRequest(directory, how, on_row=on_row))[0]
        try:
            return Repetitions(world, signals, config, directory, shard, on_row).run(how)
        except CollectiveExit as ended:
            return ended.reason

    return with_recovery(world, run) if config.mpi.fault_tolerance else run(again=False)


@dataclass(frozen=True)
class Repetitions:
    """Several repetitions in one directory; `shard` is None outside of a job array."""

    world: World
    signals: Signals
    config: Config
    directory: Path
    shard: Shard | None
    on_row: OnRow | None

    def run(self, resume: str) -> ExitReason:
        """Open the directory, run this group's share, wait for the others."""
        on_rank_0(self.world, lambda: self._open(resume))
        groups = self.config.repetition_groups
        shared = shared_noise(self.config, self.world)
        group = self.world.split(groups)
        number = self._group(groups)
        ended = ExitReason(0)
        for repetition in self._share(Shard(number, groups)):
            one = self._tried(group, Shard(number, groups), repetition, shared)
            ended = worse(ended, one)
            if one.status == INTERRUPTED:
                break
        return self._together(ended)

    def place(self, repetition: int) -> Path:
        """Return the run directory of a repetition."""
        return self.directory / f"repetition_{repetition:04d}"

    def _group(self, groups: int) -> int:
        return next(g for g in range(groups) if self.world.rank < -(-self.world.size * (g + 1) // groups))

    def _share(self, part: Shard) -> range:
        mine = (self.shard or Shard()).share(self.config.repetitions)
        within = part.share(len(mine))
        return range(mine.start + within.start, mine.start + within.stop)

    def _open(self, resume: str) -> None:
        """The chief: find every reason not to begin."""
        from hpc_es.storage import results

        if self.config.repetition_groups > self.world.size:
            text = f"is {self.config.repetition_groups}, but the job has {self.world.size} ranks: a group needs one"
            raise ConfigError([("repetition_groups", text)])
        if (self.directory / "checkpoints").exists():
            raise UserError(f"{self.directory} holds a single run, not repetitions: choose another --output")
        used = (self.directory / results.SHARDS).exists() or any(self.directory.glob("repetition_*"))
        if resume == "never" and used:
            text = "holds repetitions already, and --resume is never: choose another --output, or --resume auto"
            raise UserError(f"{self.directory} {text}")
        if resume == "require" and not used:
            raise UserError(f"--resume require: there are no repetitions in {self.directory}")
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        self._same_experiment()
        for row in results.read_results(self.directory):
            self._same("repetitions", row["repetitions"], self.config.repetitions)
            self._same("stop", row["budget"], results.budget(self.config))
        write_text(self.directory / "config.yaml", dump(self.config))
        self._status("running")

    def _same_experiment(self) -> None:
        path = self.directory / "config.yaml"
        old = self._completed(plain_data(path.read_text())) if path.exists() else identity(self.config)
        if different := differences(old, identity(self.config), "in the directory"):
            lines = "\n  ".join(different)
            text = (
                f"{self.directory} holds another experiment; these may not change:\n  {lines}\nchoose another --output"
            )
            raise UserError(text)

    def _completed(self, old: Mapping[str, Any]) -> Mapping[str, Any]:
        return completed(old, named_user_kinds(resolved(self.config)))

    def _same(self, key: str, before: Any, now: Any) -> None:
        if before != now:
            text = f"finished repetitions of {self.directory} have {json.dumps(before)}, the config {json.dumps(now)}"
            raise ConfigError([(key, f"{text}: they could not be compared; choose another --output")])

    def _tried(self, group: World, part: Shard, repetition: int, shared: Any) -> ExitReason:
        """As `_repetition`; what ends one group does not keep the others from being waited for."""
        try:
            return self._repetition(group, part, repetition, shared)
        except CollectiveExit as ended:
            return ended.reason

    def _repetition(self, group: World, part: Shard, repetition: int, shared: Any) -> ExitReason:
        """Run one repetition and book its result, unless that is done."""
        from hpc_es.storage import results

        def is_done() -> bool:
            return repetition in {row["repetition"] for row in results.read_results(self.directory)}

        if on_rank_0(group, is_done, lambda done: {"done": done})[1]["done"]:
            return ExitReason(0)
        speaks = self.world.rank == 0
        request = RunRequest(self.place(repetition), "auto", repetition, shared, self.on_row, speaks)
        ended, result = run_once(group, self.signals, self.config, request)
        if ended.in_use and self.shard is not None:  # another task of the array has it
            return ExitReason(0, ended.text)
        if result is not None:
            outer = self.shard or Shard()
            whole = Shard(outer.index * part.count + part.index, outer.count * part.count)
            results.append(self.directory, whole, result)
            if speaks:
                self._status("running")
        return replace(ended, text=f"repetition {repetition}: {ended.text}") if ended.status else ended

    def _together(self, ended: ExitReason) -> ExitReason:
        """Wait for the other groups; the chief says which repetitions are out, and sums up."""
        told = json.dumps({"status": ended.status, "text": ended.text}).encode()
        before, self.world.poll = self.world.poll, Poll(self)
        every = self.world.allgather(np.frombuffer(told, np.uint8))
        self.world.poll = before
        for other in every:
            ended = worse(ended, ExitReason(**json.loads(other.tobytes())))
        if self.world.rank == 0:
            self._sum_up(ended)
        return ended

    def give_up(self) -> NoReturn:
        """End all groups, with what they have saved."""
        if self.world.rank == 0:
            self._status("interrupted", exit_status=INTERRUPTED, reason="a second signal while other groups trained")
        self.world.abort(INTERRUPTED)

    def _sum_up(self, ended: ExitReason) -> None:
        from hpc_es.storage import results

        rows = results.read_results(self.directory)
        summary = results.summary(rows, self.config.repetitions)
        write_json(self.directory / "summary.json", summary)
        say = {0: "finished", INTERRUPTED: "interrupted"}.get(ended.status, "failed")
        self._status(say, exit_status=ended.status, reason=ended.text)
        if rows and self.config.report.plot_interval_seconds:
            from hpc_es.report.plot import plot

            plot([self.place(row["repetition"]) for row in rows], self.directory / "curve.png")
        sys.stdout.write(results.summary_text(summary))
        if ended.status == INTERRUPTED:  # which rank 0's own repetition need not have said
            sys.stdout.write(f"interrupted ({ended.text}); the same command resumes the run\n")

    def _status(self, status: str, **more: object) -> None:
        """Replace this task's status file, which scripts read."""
        mine = (self.shard or Shard()).share(self.config.repetitions)
        generations = {repetition: generation(self.place(repetition)) for repetition in mine}
        values = {"status": status, "generation": sum(generations.values()), "repetitions": list(mine)}
        write_json(self.directory / status_name(self.shard), {**values, **more, **this_run(os.environ)})


class Poll:
    """Called while a rank waits for the other groups."""

    def __init__(self, repetitions: Repetitions) -> None:
        self._repetitions = repetitions
        self._said = time.monotonic()
        self._limit = math.inf

    def __call__(self) -> None:
        """Give up soon after a second signal, for a rank of another group may have died; the chief says what is out."""
        now, r = time.monotonic(), self._repetitions
        if r.signals.count >= 2:
            self._limit = min(self._limit, now + abandon_timeout(os.environ))
        if now >= self._limit:
            r.give_up()
        if r.world.rank == 0 and now - self._said >= SAY_SECONDS:
            self._say()

    def _say(self) -> None:
        from hpc_es.storage import results

        self._said = time.monotonic()
        r = self._repetitions
        there = {row["repetition"] for row in results.read_results(r.directory)}
        mine = (r.shard or Shard()).share(r.config.repetitions)
        out = [f"{n} (generation {generation(r.place(n))})" for n in mine if n not in there]
        sys.stdout.write(f"waiting for repetitions {', '.join(out)}\n")
        sys.stdout.flush()


def worse(one: ExitReason, other: ExitReason) -> ExitReason:
    """Return the status of both: interrupted if one is, as the same command then carries on, else failed if one is."""
    order = [0, 1, 2, INTERRUPTED]
    return max(one, other, key=lambda ended: order.index(ended.status) if ended.status in order else 1)


def status_name(shard: Shard | None) -> str:
    """Return the status file of an array task, or of the whole."""
    return "status.json" if shard is None or shard.count == 1 else f"status_{shard.index}_of_{shard.count}.json"


def generation(run: Path) -> int:
    """Return how many generations a run has finished, as its status file says."""
    try:
        return int(json.loads((run / "status.json").read_text())["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line of `python -m hpc_es.main`."""
    p = Parser(
        prog="python -m hpc_es.main",
        description="Train; the same command again resumes where the run stopped. Also: hpc-es train",
        epilog="exit status: 0 finished, 2 wrong command or config, 75 interrupted (run it again), 1 failed",
    )
    add_arguments(p)
    return p


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job: the config, its overrides, and how to run it."""
    text = "YAML file of the experiment (hpc-es options lists the keys), or config string: env=c(...),agent=c(...)"
    parser.add_argument("config", metavar="CONFIG", help=text)
    text = "changed setting, such as algorithm.sigma=0.1; the value is YAML"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    parser.add_argument("--output", type=Path, metavar="DIR", help="run directory (default: runs/<name>)")
    text = "auto: resume if DIR has a checkpoint; never: refuse a DIR with a run; require: refuse a DIR without one"
    parser.add_argument("--resume", choices=("auto", "never", "require"), default="auto", help=text)
    text = "run part i (from 0) of n of the repetitions (default: the index in a SLURM job array, or all)"
    parser.add_argument("--shard", metavar="i/n", help=text)
    text = "validate config, environment and policy; do not train"
    parser.add_argument("--check", action="store_true", help=text)
    text = "with --check: number of ranks; report whether all of them will have work"
    parser.add_argument("--ranks", type=whole_number, metavar="N", help=text)
    text = "with --check: do not call task.function"
    parser.add_argument("--no-call", dest="call", action="store_false", help=text)


def run_job(read_arguments: Callable[[], argparse.Namespace]) -> int:
    """Prepare and train on every rank, and return the exit status; the arguments are read on rank 0."""
    world = connect()
    signals = Signals()
    try:
        _, told = on_rank_0(world, lambda: _orders(read_arguments()), dict)
        config, shard = config_from_message(world, told), Shard(*told["shard"]) if told["shard"] else None
        reason = run_experiment(world, signals, config, Path(told["output"]), told["resume"], shard)
    except CollectiveExit as ended:
        reason = ended.reason
    if world.rank == 0 and reason.text and reason.status != INTERRUPTED:
        sys.stderr.write(f"hpc_es: {reason.text}\n")
    return reason.status


def _orders(options: argparse.Namespace) -> Mapping[str, Any] | ExitReason:
    config = valid_config(read(options.config, options.overrides), options.output)
    shard = Shard.parse(options.shard) if options.shard else None
    if shard is not None and config.repetitions == 1:
        raise UserError("--shard is for several repetitions, and the config has one: set repetitions")
    if shard is None and config.repetitions > 1:
        shard = Shard.of_array(os.environ)
    if options.check:
        from hpc_es.training.check import check

        return ExitReason(check(config, options.ranks, options.output, options.call))
    if options.ranks is not None:
        raise UserError("--ranks is for --check; the launcher says how many a run has: mpiexec -n 4, srun -n 64")
    return {
        **config_message(config),
        "output": str(options.output or config.output),
        "resume": options.resume,
        "shard": astuple(shard) if shard else None,
    }
