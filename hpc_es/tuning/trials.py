"""The trials of a tuning directory: the table of all trials, and the record of each one.

    output/trials.json              the identity of the tuning and the hyperparameters of every
                                    trial
    output/trial_0007/trial.json    the state of a trial (begun, complete, pruned or failed), beside
                                    its run
    output/locks/trial_0007/lock    held by the task that runs the trial, until its process ends

The table is written at first use. It may grow: random and Optuna searches by more trials, grids by
more values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hpc_es.config.options import Hint, Limits, require_fit
from hpc_es.core.data import ConfigData, Json, JsonObject
from hpc_es.core.errors import InUseError, UserError
from hpc_es.core.run_files import count_lines, make_directory, read_json
from hpc_es.storage.compare import differences
from hpc_es.storage.files import (
    create_text,
    json_text,
    write_json,
    writing,
)
from hpc_es.storage.metrics_log import JSONL
from hpc_es.storage.run_lock import RunLock
from hpc_es.tuning.space import Hyperparameters, require_small

TRIAL_FILE = "trial.json"
OF_A_TRIAL = re.compile(r"trial_([0-9]{4,9})")  # other names are not of a tuning
PRUNED_FILE = "pruned.json"  # while the trial is still running: every group of ranks looks for it
STARTED, COMPLETE, PRUNED, FAILED = "begun", "complete", "pruned", "failed"
OVER = (COMPLETE, PRUNED, FAILED)
MAX_FRUITLESS_STARTS = 3  # without a new generation
WAIT_SECONDS, LOOK_SECONDS = 120.0, 0.01  # for a lock that others hold for milliseconds


@dataclass(frozen=True)
class Trial:
    """One trial of a tuning."""

    directory: Path  # of the tuning
    number: int

    @property
    def name(self) -> str:
        """Name of its directory."""
        return f"trial_{self.number:04d}"

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.directory / self.name

    def record(self) -> JsonObject:
        """Return trial.json, {} before the trial was started; UserError if the file is damaged."""
        path = self.path / TRIAL_FILE
        try:
            record = read_json(path)
            for name, hint in _RECORD.items():
                if name in record:
                    require_fit(hint, record[name], name)
            if record["state"] == COMPLETE:
                require_fit(float, record["objective"], "objective")
            return {"state": record["state"], **record}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: expected a trial as JSON, but it cannot be read: {error}; remove it "
                "to resume the trial"
            ) from error

    @property
    def over(self) -> bool:
        """Whether the trial has ended."""
        return self.record().get("state") in OVER

    def generations(self) -> int:
        """Return the number of finished generations, summed over repetitions."""
        paths = [self.path / JSONL, *sorted(self.path.glob(f"repetition_*/{JSONL}"))]
        return sum(count_lines(path) for path in paths)

    def fruitless_starts(self) -> int:
        """Return the number of starts since the last new generation of the trial."""
        before = self.record()
        return (
            int(before.get("begun", 0))
            if self.generations() <= int(before.get("generation", 0))
            else 0
        )

    def begin(self, hyperparameters: Hyperparameters) -> bool:
        """Record that the trial starts or resumes.

        If it has used up MAX_FRUITLESS_STARTS, fail it and return False. Otherwise a trial that
        ends the whole job each time would keep the other trials from running.
        """
        starts = self.fruitless_starts()
        if starts >= MAX_FRUITLESS_STARTS:
            self.end(
                hyperparameters,
                FAILED,
                reason=f"started {starts} times without a new generation: it seems to end the whole "
                "job; see its log.txt",
            )
            return False
        furthest = max(self.generations(), int(self.record().get("generation", 0)))
        self._write(hyperparameters, STARTED, begun=starts + 1, generation=furthest)
        return True

    def interrupt(self, hyperparameters: Hyperparameters) -> None:
        """Record that a signal interrupted the trial, which does not count as a fruitless start."""
        self._write(hyperparameters, STARTED, begun=0, generation=self.generations())

    def end(
        self,
        hyperparameters: Hyperparameters,
        state: str,
        objective: float | None = None,
        **more: Json,
    ) -> None:
        """Record how the trial ended."""
        self._write(
            hyperparameters, state, objective=objective, generation=self.generations(), **more
        )

    def _write(self, hyperparameters: Hyperparameters, state: str, **more: Json) -> None:
        with writing(self.path):
            make_directory(self.path)
        write_json(
            self.path / TRIAL_FILE,
            {"trial": self.number, "state": state, "hyperparameters": hyperparameters, **more},
        )

    def prune(self, reason: str) -> None:
        """Ask all groups of ranks to end the trial."""
        write_json(self.path / PRUNED_FILE, {"reason": reason})

    def pruned(self) -> str | None:
        """Return why the trial should end early, or None."""
        try:
            return str(read_json(self.path / PRUNED_FILE)["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def claim(self) -> RunLock:
        """Lock the trial for this task until its process ends.

        InUseError names the process that has it.
        """
        return lock(self.directory, self.name).acquire()


def started_trials(directory: Path) -> Iterator[Trial]:
    """Yield the trials of a directory that have a record, by number."""
    names = {path.parent.name for path in directory.glob(f"trial_*/{TRIAL_FILE}")}
    found = (OF_A_TRIAL.fullmatch(name) for name in names)
    trials = (Trial(directory, int(name[1])) for name in found if name is not None)
    # as a trial names its directory, so that each has one number
    yield from sorted((one for one in trials if one.name in names), key=lambda one: one.number)


def lock(directory: Path, name: str) -> RunLock:
    """Return a lock of the tuning."""
    path = directory / "locks" / name
    with writing(path):
        make_directory(path)
    return RunLock(path)


@contextlib.contextmanager
def holding(run_lock: RunLock) -> Iterator[None]:
    """Hold a lock that others hold only briefly; InUseError after WAIT_SECONDS."""
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            run_lock.acquire()
            break
        except InUseError:
            if time.monotonic() > limit:
                raise
            time.sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        run_lock.release()


TABLE_FILE = "trials.json"
# on these keys of the base
NO_RESULT_DEPENDS = ("name", "output", "repetition_groups", "checkpoint", "report")
GROWTH = {
    "grid": "a grid may get further values in its lists, but keeps those that it has",
    "random": "only `trials` may change, since the space decides what is drawn",
    "optuna": "only `trials` may change, since the study has its space",
}


MOST_TRIALS = 20_000
MOST_VALUES = 1_000_000  # of all trials
# of what a task needs of trial.json
_RECORD: Mapping[str, Hint] = {
    "state": Literal["begun", "complete", "pruned", "failed"],
    "hyperparameters": ConfigData,
    "objective": float | None,
    "goal": str,
    "begun": Annotated[int, Limits(ge=0)],
    "generation": Annotated[int, Limits(ge=0)],
    "reason": str | None,
}
# the types of what reports need: a table may come from somebody else
_IDENTITY: Mapping[str, Hint] = {
    "search": str,
    "objective": str | ConfigData,
    "base": ConfigData,
    "space": ConfigData,
    "trials": Annotated[int, Limits(ge=0, le=MOST_TRIALS)],
    "repetitions": Annotated[int, Limits(ge=1)] | None,
}


def read_table(directory: Path) -> JsonObject | None:
    """Return the table of a directory (`hash`, `identity` and `trials`), None without one.

    Raises:
        UserError: it is damaged.
    """
    path = directory / TABLE_FILE
    try:
        table = read_json(path)
        if table["hash"] != digest(table["identity"]):
            raise ValueError("its hash is not that of its content")
        require_fit(list[ConfigData], table["trials"], "trials")
        for name, hint in _IDENTITY.items():
            require_fit(hint, table["identity"].get(name), name)
        repetitions = table["identity"]["base"].get("repetitions")
        require_fit(_IDENTITY["repetitions"], repetitions, "base.repetitions")
        require_small(table["identity"].get("space") or {})
        if len(table["trials"]) > MOST_TRIALS:
            raise ValueError(f"it has more than {MOST_TRIALS:,} trials")
        keys = len(table["identity"].get("space") or {})
        trials = max(len(table["trials"]), table["identity"]["trials"])
        if trials * keys > MOST_VALUES:
            raise ValueError(
                f"it has {trials:,} trials of {keys:,} keys, more than {MOST_VALUES:,} values"
            )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: expected the trials of a tuning, but it cannot be read: {error}; choose "
            "another --output"
        ) from error
    return dict(table)


def matching_trials(directory: Path, identity: JsonObject) -> list[Hyperparameters] | None:
    """Return the trials of the table, None before first use.

    The identity may have more or fewer trials (see `grown`).

    Raises:
        UserError: the identity would change them.
    """
    table = read_table(directory)
    if table is None:
        return None
    old, new = canonical(table["identity"]), canonical(identity)
    if different := differences(_with_room(old, new), new, "in the directory"):
        lines = "\n  ".join(different)
        why = GROWTH.get(str(old.get("search")), "")
        text = (
            f"{directory} holds another tuning, whose trials these would change:\n  {lines}\n{why}"
        )
        raise UserError(f"{text.rstrip()}\nchoose another --output")
    return list(table["trials"])


def canonical(identity: JsonObject) -> JsonObject:
    """Return the part of an identity that results depend on."""
    base = identity.get("base", {})
    decisive = {key: value for key, value in base.items() if key not in NO_RESULT_DEPENDS}
    # not who has which share
    decisive["mpi"] = {"chunk_size": (base.get("mpi") or {}).get("chunk_size", "auto")}
    return {**identity, "base": decisive, "space": dict(identity.get("space", {}))}


def _with_room(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the old identity with the growing parts of the new one."""
    space = dict(old.get("space", {}))
    if old.get("search") == "grid":
        for key, values in space.items():
            others = new.get("space", {}).get(key)
            if isinstance(others, list) and all(
                digest(value) in map(digest, others) for value in values
            ):
                space[key] = others
    return {**old, "space": space, "trials": new.get("trials")}


def grown(table: JsonObject, identity: JsonObject, trials: Sequence[Hyperparameters]) -> JsonObject:
    """Return a table with missing trials appended; the existing ones keep their numbers.

    `identity` is one that `matching_trials` accepts, with the key names of the table, and `trials`
    are its trials.
    """
    old, there = table["identity"], list(table["trials"])
    if old["search"] == "grid":
        texts = {digest(trial) for trial in there}
        there += [trial for trial in trials if digest(trial) not in texts]
        new = {**old, "space": identity["space"], "trials": len(there)}
    else:
        there += trials[len(there) :]
        new = {**old, "trials": max(old["trials"], identity["trials"])}
    return {"hash": digest(new), "identity": new, "trials": there}


def extend(
    directory: Path, identity: JsonObject, trials: Sequence[Hyperparameters]
) -> list[Hyperparameters]:
    """Append missing trials to the table and return all; the caller holds the lock of the table.

    RunError.
    """
    table = read_table(directory)
    assert table is not None
    longer = grown(table, identity, trials)
    if longer != table:
        write_json(directory / TABLE_FILE, longer)
    return list(longer["trials"])


def freeze(
    directory: Path, identity: JsonObject, trials: Sequence[Hyperparameters]
) -> list[Hyperparameters]:
    """Write the table, or return the trials of another task that wrote it first.

    The file is created atomically. Raises UserError like `matching_trials`, and RunError if it
    cannot be written.
    """
    table = {"hash": digest(identity), "identity": identity, "trials": list(trials)}
    create_text(directory / TABLE_FILE, json_text(table, indent=2) + "\n")
    trials_of_table = matching_trials(directory, identity)
    assert trials_of_table is not None
    return trials_of_table


def digest(value: object) -> str:
    """Return the SHA-256 of a value as canonical JSON."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
