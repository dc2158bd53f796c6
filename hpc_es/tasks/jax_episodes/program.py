"""A compiled call: the plays of some jobs, in segments of so many steps, while the rank goes on listening.

From a chunk's jobs to what compiled calls are given, and from what they give back to the rows of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import (
    BEHAVIOUR,
    SIGN_RETURN,
    Array,
    Float32,
    Normaliser,
    ObservationSpec,
    Poll,
    Rows,
    behaviour,
    row_dtype,
)
from hpc_es.core.errors import ConfigError
from hpc_es.core.failures import Failure, failure_from_text
from hpc_es.core.policy import Batch, PurePolicy
from hpc_es.tasks.jax_episodes.environments import Traced
from hpc_es.tasks.jax_episodes.rollout import Carry, Inputs, Results, Seen, begun, segment
from hpc_es.tasks.jax_episodes.setup import NAN_OBSERVATION, Form
from hpc_es.tasks.observation_statistics import ObservationSums

POLL_SECONDS = 2e-3  # between two looks at signals and messages
T = TypeVar("T")

_thread = ThreadPoolExecutor(1, "compiled calls")  # one: a call that was given up ends before the next begins


def in_thread(function: Callable[[], T], poll: Poll) -> T:
    """Return what the function does, computed in the one worker thread; `poll` is called meanwhile, once at least.

    JAX computes small calls in the thread that asks for them, and no signal is seen until it is done.
    """
    future = _thread.submit(function)
    poll()
    while not wait((future,), POLL_SECONDS).done:
        poll()
    return future.result()


class Program:
    """The compiled call of one environment, policy and form. `compile` may be left to the first `run`."""

    def __init__(self, env: Traced, policy: PurePolicy, form: Form) -> None:
        self.form, self._env, self._pure = form, env, policy.pure(jnp)
        theta = jax.ShapeDtypeStruct((form.params,), np.float32)
        self._parameters = jax.eval_shape(self._pure.parameters, theta)
        self._segment = jax.jit(partial(segment, env, self._pure, form), donate_argnums=0)
        self._compiled: Any = None
        self._first: Carry | None = None  # what every call begins with

    def trace(self) -> None:
        """See that environment and policy fit each other, without compiling; ConfigError."""
        try:
            jax.eval_shape(self._segment, self._carry(), self.no_inputs(), np.int32(1))
        except Exception as error:  # around code that is not ours
            said = "".join(str(error).strip().splitlines()[:1])
            text = f"episodes of this environment cannot be traced: {type(error).__name__}: {said}"
            raise ConfigError([("task.env_id", text)]) from error

    def compile(self, poll: Poll) -> None:
        """Compile, or read from the persistent cache."""
        if self._compiled is None:
            self._compiled = in_thread(self._lowered, poll)

    def _lowered(self) -> Any:
        return self._segment.lower(self._carry(), self.no_inputs(), np.int32(1)).compile()

    def _carry(self) -> Carry:
        if self._first is None:
            self._first = jax.tree.map(np.asarray, begun(self._env, self._pure, self._parameters, self.form))
        carry: Carry = jax.tree.map(np.copy, self._first)  # the call may write into it
        return carry

    def no_inputs(self) -> Inputs:
        """Return inputs of zeros, without plays."""
        form, width = self.form, self._env.spaces.observations.size
        one = (np.zeros(width, np.float32), np.ones(width, np.float32), np.float32(1)) if form.normalised else ()
        return Inputs(
            theta=np.zeros((form.jobs, form.params), np.float32),
            keys=np.zeros((form.plays, 2), np.uint32),
            noise_keys=np.zeros((form.plays, 2), np.uint32),
            count=np.int32(0),
            reward_offset=np.float32(0),
            noise_std=np.float32(0),
            normaliser=one,
        )

    def run(self, inputs: Inputs, segment_steps: int, poll: Poll) -> tuple[Results, int]:
        """Return the results of all plays, [plays] with padding, as NumPy arrays, and the steps that the lanes took."""
        self.compile(poll)
        carry, is_open = self._carry(), True
        while is_open:
            carry, is_open = in_thread(partial(self._one_segment, carry, inputs, np.int32(segment_steps)), poll)
        return jax.tree.map(np.array, carry.results), int(carry.steps)

    def _one_segment(self, carry: Carry, inputs: Inputs, steps: Any) -> tuple[Carry, bool]:
        carry, is_open = self._compiled(carry, inputs, steps)
        return carry, bool(is_open)


LOW_BITS = 2**32 - 1


def inputs_of(
    form: Form, theta: Float32, normaliser: Normaliser | None, batch: Batch, jobs: range, reward_offset: float
) -> Inputs:
    """Return the inputs of a call for some jobs of a batch, padded; `theta` is float32[jobs of the batch, params]."""
    seeds = batch.seeds[jobs.start : jobs.stop].ravel()
    keys = np.stack([seeds >> 32, seeds & LOW_BITS], axis=1)  # those of jax.random.key(seed)
    is_noisy = form.noisy and batch.training
    return Inputs(
        theta=padded(theta[jobs.start : jobs.stop], form.jobs, np.float32),
        keys=padded(keys, form.plays, np.uint32),
        noise_keys=padded(noise_keys(form, batch, jobs if is_noisy else range(0)), form.plays, np.uint32),
        count=np.int32(len(seeds)),
        reward_offset=np.float32(reward_offset if batch.training else 0.0),
        noise_std=np.float32(batch.action_noise_std if is_noisy else 0.0),
        normaliser=() if normaliser is None else (normaliser[0], normaliser[1], np.float32(normaliser[2])),
    )


def noise_keys(form: Form, batch: Batch, jobs: range) -> Array:
    """Return uint32[plays, 2], from each job's own generator."""
    drawn = [batch.action_noise(job).integers(2**32, size=(form.episodes, 2), dtype=np.uint32) for job in jobs]
    return np.concatenate(drawn) if drawn else np.zeros((0, 2), np.uint32)


def padded(array: Array, rows: int, dtype: Any) -> Array:
    """Return the array with rows of zeros up to so many; a call always has the shape that was compiled."""
    if len(array) == rows and array.dtype == dtype:
        return array
    found = np.zeros((rows, *array.shape[1:]), dtype)
    found[: len(array)] = array
    return found


class Collected:
    """What the calls of a chunk gave, job by job."""

    def __init__(self, form: Form, batch: Batch, spec: ObservationSpec, places: Sequence[int] | None) -> None:
        self._form, self._batch = form, batch
        self._places = places  # of the observation, which are the behaviour; None: there is none
        columns = () if places is None else (behaviour(len(places)),)
        self.rows: Rows = np.zeros(len(batch.seeds), row_dtype((SIGN_RETURN, *columns)))
        self.failures: list[Failure] = []
        self.sums = ObservationSums(batch, spec)

    def add(self, results: Results, jobs: range) -> None:
        """Take in the results of a call, for these jobs of the batch."""
        shape, plays = (len(jobs), self._form.episodes), len(jobs) * self._form.episodes
        rows = self.rows[jobs.start : jobs.stop]
        failed = results.failed[:plays].reshape(shape)
        returns = results.return_.exactly()[:plays].reshape(shape)
        lengths = results.length[:plays].reshape(shape)
        rows["return_"] = np.where(failed.any(axis=1), np.nan, returns.mean(axis=1))
        rows["sign_return"] = results.signs[:plays].reshape(shape).mean(axis=1)
        rows["length"] = lengths.sum(axis=1)
        for place in np.flatnonzero(failed.any(axis=1)).tolist():
            episode = int(np.flatnonzero(failed[place])[0])
            why = reason(int(failed[place, episode]), float(results.return_.value[place * shape[1] + episode]))
            self.failures.append(failure_from_text(f"{why} at step {lengths[place, episode]}", position=jobs[place]))
        if self._places is not None:
            self._behave(rows, results.observation[:plays].reshape(*shape, -1)[:, :, list(self._places)], jobs)
        if isinstance(results.seen, Seen):
            self._observe(results.seen, lengths, jobs)

    def _behave(self, rows: Rows, last: Array, jobs: range) -> None:
        """Set the behaviours, the means of float[jobs, episodes, behaviour]."""
        rows[BEHAVIOUR] = last.mean(axis=1, dtype=np.float64)
        wrong = ~np.isfinite(last).all(axis=(1, 2)) & ~np.isnan(rows["return_"])
        rows["return_"][wrong] = np.nan
        for place in np.flatnonzero(wrong).tolist():
            text = f"the behaviour is {rows[BEHAVIOUR][place].tolist()}"
            self.failures.append(failure_from_text(text, position=jobs[place]))

    def _observe(self, seen: Seen, lengths: Array, jobs: range) -> None:
        """Add up the observations of each job's episodes in order, as differences from the first one or from 0."""
        first, total, squares = seen.first.astype(np.float64), seen.total.exactly(), seen.squares.exactly()
        for place in np.flatnonzero(self._batch.observe[jobs.start : jobs.stop]).tolist():
            plays = range(place * self._form.episodes, (place + 1) * self._form.episodes)
            origin = first[plays.start] * self._batch.centred
            sums, squared = np.zeros_like(origin), np.zeros_like(origin)
            for play in plays:
                apart, count = first[play] - origin, lengths.flat[play]
                sums += total[play] + count * apart
                squared += squares[play] + 2 * apart * total[play] + count * np.square(apart)
            self.sums.set_job(jobs[place], sums, squared, float(lengths[place].sum()), origin)


def reason(code: int, return_: float) -> str:
    """Return why a play failed."""
    return "the observation is NaN" if code == NAN_OBSERVATION else f"the return is {return_}"
