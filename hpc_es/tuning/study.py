"""An Optuna study (TPE or CMA-ES) in a journal file that several tasks use at the same time.

The study stores the trials and their hyperparameters; their results are in their directories. The
locks, of the journal and of the choice of a trial, end with their process, and an incomplete line
of a killed process is removed before the next one is appended, so a kill at any time leaves a valid
study.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from hpc_es.api.optuna_sampler import Sampler
from hpc_es.core.errors import READING, InUseError, UserError, found_text, unreadable_reason
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.run_files import UnusualFileError, each_line, open_file
from hpc_es.storage.files import writing
from hpc_es.storage.run_lock import RunLock
from hpc_es.tuning.plan import SamplerName
from hpc_es.tuning.space import (
    Hyperparameters,
    Space,
    SpaceEntry,
    Value,
    ValueRange,
    as_text,
    require_in_space,
)
from hpc_es.tuning.trials import COMPLETE, OVER, PRUNED, Trial, holding, lock

JOURNAL = "study.journal"
LARGEST_JOURNAL = 1 << 30  # bytes, which are read into memory
STEPS = 20  # points of the budget at which trials are compared
FIRST_STEP = 4  # at which a trial may be pruned
FINISHED_FIRST = 5  # trials that must finish before any is pruned


class JournalLock(JournalFileOpenLock):
    """The lock of the journal, in place of Optuna's lock file.

    A killed process would leave that behind. It keeps the journal open: Optuna opens it again by
    this path, where it would wait for a pipe that takes the place of the file.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory / JOURNAL))
        self._path, self._lock = directory / JOURNAL, lock(directory, "journal")
        self._stack, self._file = contextlib.ExitStack(), _opened(self._path)
        self.opened = f"/proc/self/fd/{self._file.fileno()}"

    def acquire(self) -> bool:
        """Wait for the lock, and remove an incomplete line of a killed process."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(holding(self._lock))
            with open_file(self._path, "r+b") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                if file.read() not in {b"", b"\n"}:
                    file.seek(0)
                    try:
                        end = sum(len(line) for line in each_line(file) if line.endswith(b"\n"))
                    except ValueError as error:
                        raise UnusualFileError(self._path, str(error)) from error
                    file.truncate(end)
            self._stack = stack.pop_all()
        return True

    def release(self) -> None:
        """Let another process write the journal."""
        self._stack.close()


class Study:
    """The Optuna study of a directory, in one task."""

    def __init__(
        self, directory: Path, space: Space, trials: int, seed: int, sampler: SamplerName = "tpe"
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._directory, self._space, self._trials, self._keys = (
            directory,
            space,
            trials,
            Keys(seed),
        )
        distributions = {key: _distribution(entry) for key, entry in space.items()}
        self._cma_es = Sampler(distributions, seed=seed) if sampler == "cma_es" else None
        lock_of_journal = JournalLock(directory)
        backend = JournalFileBackend(lock_of_journal.opened, lock_obj=lock_of_journal)
        pruner = optuna.pruners.MedianPruner(FINISHED_FIRST, FIRST_STEP)
        with holding(lock(directory, "choice")), self._damage_named():
            self._study = optuna.create_study(
                storage=JournalStorage(backend),
                study_name="tuning",
                direction="maximize",
                sampler=self._cma_es,
                pruner=pruner,
                load_if_exists=True,
            )
        self._trial: optuna.Trial | None = None
        self._best: float | None = None
        self._step = -1

    def choose(self) -> tuple[Trial, RunLock, Hyperparameters] | None:
        """Return the next trial for this task with its lock; None if none is left.

        A trial that was started and that no process runs comes before a new one.
        """
        with (
            writing(self._directory / JOURNAL),
            holding(lock(self._directory, "choice")),
            self._damage_named(),
        ):
            trials = self._study.get_trials(deepcopy=False)
            for frozen in trials:
                trial = Trial(self._directory, frozen.number)
                if frozen.state.is_finished() or frozen.number >= self._trials:
                    continue
                if trial.over:  # killed before the study was informed
                    self._tell(trial)
                    continue
                with contextlib.suppress(InUseError):
                    claim = trial.claim()
                    return (
                        trial,
                        claim,
                        self._suggested(optuna.Trial(self._study, frozen._trial_id)),
                    )
            if len(trials) >= self._trials:
                return None
            new = self._study.ask()
            trial = Trial(self._directory, new.number)
            return trial, trial.claim(), self._suggested(new)

    def _suggested(self, trial: optuna.Trial) -> Hyperparameters:
        """Return the hyperparameters of a trial, from the study or newly sampled.

        For TPE, each trial has its own sampler, seeded by its number: otherwise tasks that start
        together would sample the same.
        """
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        known = frozen.intermediate_values
        if wrong := [step for step in known if not 0 <= step <= STEPS]:
            raise ValueError(f"trial {trial.number} has the step {found_text(wrong[0])}")
        self._trial, self._best, self._step = (
            trial,
            max(known.values(), default=None),
            max(known, default=-1),
        )
        seed = self._keys.seed31(Purpose.TUNING, index=trial.number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna calls some of its options experimental
            tpe = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study.sampler = tpe if self._cma_es is None else self._cma_es
        suggested = {key: _suggest(trial, key, entry) for key, entry in self._space.items()}
        try:  # the journal may hold values of its own
            require_in_space(self._space, suggested)
        except ValueError as error:
            journal = self._directory / JOURNAL
            raise UserError(
                f"{journal}: trial {trial.number}: {error}; choose another --output"
            ) from None
        return suggested

    def report(self, value: float, share: float, sign: float = 1.0) -> str | None:
        """Report an evaluation after this fraction of the budget.

        `value` is higher for a better one; times `sign` it is as the user knows it. A step stores
        the best evaluation so far, so that trials with other evaluation times can be compared.

        Returns:
            Why the trial should be pruned, or None.
        """
        assert self._trial
        step = int(share * STEPS)
        with self._damage_named():
            if self._best is not None:
                for missed in range(self._step + 1, step):
                    self._trial.report(self._best, missed)
            best = value if self._best is None else max(self._best, value)
            self._best = best
            if step <= self._step:
                return None
            self._trial.report(best, step)
            self._step = step
            if not self._trial.should_prune():
                return None
        side = "above" if sign < 0 else "below"
        return f"its best evaluation {sign * best:.6g} after {share:.0%} of the budget is {side} the median"

    def tell(self, trial: Trial) -> None:
        """Inform the study how a trial ended, from its record."""
        with (
            writing(self._directory / JOURNAL),
            holding(lock(self._directory, "choice")),
            self._damage_named(),
        ):
            self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        """Inform the study.

        The caller holds the lock, because a second call for a trial by another task would fail.
        """
        record = trial.record()
        assert record["state"] in OVER
        states = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
        state = states.get(record["state"], TrialState.FAIL)
        sign = -1.0 if record.get("goal") == "minimise" else 1.0  # the study maximises
        value = sign * record["objective"] if state == TrialState.COMPLETE else None
        self._study.tell(trial.number, value, state, skip_if_finished=True)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Raise an error in one line if Optuna cannot work with what the journal says.

        It reads most values without a check, and fails where they are used.
        """
        try:
            yield
        except (*READING, AssertionError) as error:
            if isinstance(error, OSError):
                raise
            journal, reason = self._directory / JOURNAL, unreadable_reason(error)
            raise UserError(
                f"{journal}: expected a journal of Optuna, but it cannot be read: {reason}; choose another --output"
            ) from error


def _opened(journal: Path) -> BinaryIO:
    """Return the open journal, which is made if there is none."""
    with writing(journal):
        file = open_file(journal, "ab")
    if (size := file.seek(0, os.SEEK_END)) > LARGEST_JOURNAL:
        file.close()
        raise UnusualFileError(journal, f"has {size:,} bytes, more than {LARGEST_JOURNAL:,}")
    return file


def _distribution(entry: SpaceEntry) -> BaseDistribution:
    # as text: Optuna's choices are scalars, and it confuses 1 and true
    if not isinstance(entry, ValueRange):
        return CategoricalDistribution([as_text(value) for value in entry.values])
    if entry.kind == "integer":
        return IntDistribution(int(entry.low), int(entry.high))
    return FloatDistribution(entry.low, entry.high, log=entry.kind == "log_uniform")


def _suggest(trial: optuna.Trial, key: str, entry: SpaceEntry) -> Value:
    distribution = _distribution(entry)
    if isinstance(distribution, CategoricalDistribution):
        return json.loads(str(trial.suggest_categorical(key, distribution.choices)))
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(key, distribution.low, distribution.high)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)
