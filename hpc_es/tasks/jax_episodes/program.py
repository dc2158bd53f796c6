"""Compiled calls, which play the episodes of several jobs.

That is compilation, inputs, and results as rows of jobs. A call runs in segments of steps in
another thread, so that the rank can answer messages and signals meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import (
    BEHAVIOUR,
    SIGN_RETURN,
    Array,
    Float32,
    Float64,
    Normaliser,
    ObservationSpec,
    Poll,
    Rows,
    behaviour,
    row_dtype,
)
from hpc_es.core.errors import ConfigError, Failure, failure_from_text
from hpc_es.core.policy import DIVERGED, Batch, Pure, PurePolicy
from hpc_es.core.population import Factorisation, Population, candidate_parts
from hpc_es.core.quantities import fill_finite
from hpc_es.devices.jax_setup import compiling, in_thread, memory, tracing_text
from hpc_es.noise.portable_jax import candidates
from hpc_es.policies.networks.heads import Logits
from hpc_es.policies.networks.jax_low_rank import FactoredPolicy
from hpc_es.tasks.episodes.quantities import NO_QUANTITIES, EpisodeQuantities
from hpc_es.tasks.jax_episodes.call_shape import (
    INFINITE_OBSERVATION,
    NAN_ACTION,
    NAN_OBSERVATION,
    CallShape,
)
from hpc_es.tasks.jax_episodes.environments import Traced
from hpc_es.tasks.jax_episodes.rollout import (
    CallInputs,
    Carry,
    ObservationTotals,
    PlayResults,
    initial_carry,
    segment,
)
from hpc_es.tasks.observation_statistics import ObservationSums
from hpc_es.tasks.parts_of_calls import in_parts


class EpisodesCall:
    """The compiled call of an environment, a policy and a shape.

    `run` compiles it unless `compile` has.

    With a factorisation, candidates have the weights of the matrices `factored` in common, and
    low-rank factors.
    """

    def __init__(
        self,
        env: Traced,
        policy: PurePolicy,
        form: CallShape,
        factorisation: Factorisation | None = None,
    ) -> None:
        any_policy: Any = policy
        self._pure: Pure = any_policy.pure_with(Logits(), jnp) if form.sampled else policy.pure(jnp)
        compiled: Pure | FactoredPolicy = self._pure
        self.factored: tuple[str, ...] = ()
        self._common: Mapping[str, Float32] | tuple[()] = ()
        if factorisation is not None:
            spec = env.spaces.observations
            inputs = replace(spec, dtype=np.dtype(np.float32)) if form.normalised else spec
            low_rank = FactoredPolicy(self._pure, policy.layout, factorisation, inputs)
            self.factored = low_rank.factored
        if self.factored:
            compiled, form = low_rank, replace(form, params=low_rank.layout.size)
            self._common = {
                name: np.zeros(policy.layout.shapes[name], np.float32) for name in self.factored
            }
            self._pure = low_rank.bound(self._common)
        self.form, self._env = form, env
        self._segment = jax.jit(partial(segment, env, compiled, form), donate_argnums=0)
        self._compiled: Any = None
        self._initial: Carry | None = None  # the carry at the start of every call

    def trace(self) -> None:
        """Check that environment and policy are compatible, without compiling.

        Raises:
            ConfigError: they are not.
        """
        self._traced(partial(jax.eval_shape, self._segment))

    def _traced(self, trace: Callable[..., Any]) -> Any:
        """Return the result of a function that traces a call for these arguments.

        Raises:
            ConfigError: that fails.
        """
        try:
            return trace(self._carry(), self.no_inputs(), np.int32(1))
        except ConfigError:
            raise
        except Exception as error:  # of the user's code
            raise ConfigError(
                [
                    (
                        "task.env_id",
                        f"episodes of this environment cannot be traced: {tracing_text(error)}",
                    )
                ]
            ) from error

    def compile(self, poll: Poll) -> None:
        """Compile the call, or read it from the persistent cache; ConfigError as for `trace`."""
        if self._compiled is None:
            self._compiled = in_thread(self._compile_segment, poll)

    def _compile_segment(self) -> Any:
        with compiling():
            return self._traced(self._segment.lower).compile()

    def memory(self) -> tuple[int, int]:
        """Return the bytes of a call's arguments, and of all of its arrays."""
        self.compile(lambda: None)
        return memory(self._compiled)

    def _carry(self) -> Carry:
        if self._initial is None:
            self._initial = jax.tree.map(
                np.asarray, initial_carry(self._env, self._pure, self.form)
            )
        carry: Carry = jax.tree.map(np.copy, self._initial)  # the call may write into it
        return carry

    def no_inputs(self) -> CallInputs:
        """Return inputs of zeros for no plays."""
        form, width = self.form, self._env.spaces.observations.size
        one = (
            (np.zeros(width, np.float32), np.ones(width, np.float32), np.float32(1))
            if form.normalised
            else ()
        )
        return CallInputs(
            theta=np.zeros((form.jobs, form.params), np.float32),
            common=self._common,
            keys=np.zeros((form.plays, 2), np.uint32),
            noise_keys=np.zeros((form.plays, 2), np.uint32),
            count=np.int32(0),
            reward_offset=np.float32(0),
            noise_std=np.float32(0),
            normaliser=one,
        )

    def vectors(self, population: Population) -> tuple[Float32, Mapping[str, Float32] | tuple[()]]:
        """Return the candidates, and what they have in common, for `inputs_of`.

        They are float32[jobs, params of a call]. On a GPU candidates with portable noise are
        computed there, with rows of padding in addition.
        """
        if not self.factored:
            drawn = (
                candidates(population, self.form.jobs) if jax.default_backend() == "gpu" else None
            )
            if drawn is not None:
                return drawn, ()
            return np.asarray(population.stacked(), np.float32), ()
        common, own = candidate_parts(population, population.layout, self.factored)
        return np.concatenate(
            [part.reshape(len(part), -1) for part in own.values()], axis=1, dtype=np.float32
        ), common

    def played(
        self, inputs: CallInputs, jobs: range, segment_steps: int, poll: Poll
    ) -> Iterator[tuple[range, PlayResults | Failure, int]]:
        """Yield the results of the jobs of a call, [plays] with padding, and the number of steps.

        If Python code that the call calls fails, its jobs are played in parts, in calls of the same
        size.
        """

        def call(part: range) -> tuple[PlayResults, int]:
            own = range(part.start - jobs.start, part.stop - jobs.start)
            part_inputs = inputs if part == jobs else inputs_of_jobs(self.form, inputs, own)
            return self.run(part_inputs, segment_steps, poll)

        for part, result in in_parts(jobs, call):
            results, steps = (result, 0) if isinstance(result, Failure) else result
            yield part, results, steps

    def run(self, inputs: CallInputs, segment_steps: int, poll: Poll) -> tuple[PlayResults, int]:
        """Return the results of all plays as NumPy arrays [plays], and the number of steps.

        The arrays have padding.

        Raises:
            EvaluationError: Python code that the call calls fails.
        """
        self.compile(poll)
        # once for all segments
        inputs = jax.device_put(inputs) if jax.default_backend() == "gpu" else inputs
        carry, is_open = self._carry(), True
        while is_open:
            carry, is_open = in_thread(
                partial(self._one_segment, carry, inputs, np.int32(segment_steps)), poll
            )
        return jax.tree.map(np.array, carry.results), int(carry.steps)

    def _one_segment(self, carry: Carry, inputs: CallInputs, steps: Any) -> tuple[Carry, bool]:
        carry, is_open = self._compiled(carry, inputs, steps)
        return carry, bool(is_open)


LOW_BITS = 2**32 - 1


def inputs_of(
    form: CallShape,
    theta: Float32,
    common: Mapping[str, Float32] | tuple[()],
    normaliser: Normaliser | None,
    batch: Batch,
    jobs: range,
    reward_offset: float,
    generators: Sequence[np.random.Generator] = (),
) -> CallInputs:
    """Return the padded inputs of a call for some jobs of a batch.

    `theta`, float32[at least the jobs of the batch, params], and `common` are those of
    `EpisodesCall.vectors`; `generators` are those of the jobs' actions, if they are sampled.
    """
    seeds = batch.seeds[jobs.start : jobs.stop].ravel()
    keys = np.stack([seeds >> 32, seeds & LOW_BITS], axis=1)  # those of jax.random.key(seed)
    is_noisy = form.noisy and batch.training
    drawing = [generators[job] for job in jobs] if form.sampled else []
    drawing += [batch.action_noise(job) for job in jobs] if is_noisy else []
    return CallInputs(
        theta=padded(theta[jobs.start : jobs.start + form.jobs], form.jobs, np.float32),
        common=common,
        keys=padded(keys, form.plays, np.uint32),
        noise_keys=padded(noise_keys(form, drawing), form.plays, np.uint32),
        count=np.int32(len(seeds)),
        reward_offset=np.float32(reward_offset if batch.training else 0.0),
        noise_std=np.float32(batch.action_noise_std if is_noisy else 0.0),
        normaliser=()
        if normaliser is None
        else (normaliser[0], normaliser[1], np.float32(normaliser[2])),
    )


def inputs_of_jobs(form: CallShape, inputs: CallInputs, jobs: range) -> CallInputs:
    """Return the padded inputs of a call for some of the jobs of another one.

    They are given by their positions there.
    """
    plays = slice(jobs.start * form.episodes, jobs.stop * form.episodes)
    return inputs._replace(
        theta=padded(np.asarray(inputs.theta)[jobs.start : jobs.stop], form.jobs, np.float32),
        keys=padded(inputs.keys[plays], form.plays, np.uint32),
        noise_keys=padded(inputs.noise_keys[plays], form.plays, np.uint32),
        count=np.int32(len(jobs) * form.episodes),
    )


def noise_keys(form: CallShape, generators: Sequence[np.random.Generator]) -> Array:
    """Return the keys of actions, uint32[plays, 2], drawn from each job's generator."""
    drawn = [
        generator.integers(2**32, size=(form.episodes, 2), dtype=np.uint32)
        for generator in generators
    ]
    return np.concatenate(drawn) if drawn else np.zeros((0, 2), np.uint32)


def padded(array: Array, rows: int, dtype: Any) -> Array:
    """Return the array [rows, ...], padded with rows of zeros to the compiled shape."""
    if len(array) == rows and array.dtype == dtype:
        return array
    result = np.zeros((rows, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result


class ChunkResults:
    """The rows, failures and sums of observations of a chunk, from the results of its calls."""

    def __init__(
        self,
        form: CallShape,
        batch: Batch,
        spec: ObservationSpec,
        behaviour_indices: Sequence[int] | None,
        quantities: EpisodeQuantities = NO_QUANTITIES,
    ) -> None:
        self._form, self._batch, self._quantities = form, batch, quantities
        # of the last observation; None: there is no behaviour
        self._behaviour_indices = behaviour_indices
        columns = () if behaviour_indices is None else (behaviour(len(behaviour_indices)),)
        columns = (SIGN_RETURN, *columns, *quantities.quantities.columns)
        self.rows: Rows = np.zeros(len(batch.seeds), row_dtype(columns))
        self.failures: list[Failure] = []
        self.sums = ObservationSums(batch, spec)

    def add(self, results: PlayResults | Failure, jobs: range) -> None:
        """Add the results of a call for these jobs of the batch, or the failure of one job."""
        if isinstance(results, Failure):
            self.rows["return_"][jobs.start] = np.nan
            self.failures.append(replace(results, position=jobs.start))
            return
        shape, plays = (len(jobs), self._form.episodes), len(jobs) * self._form.episodes
        rows = self.rows[jobs.start : jobs.stop]
        failed = results.failed[:plays].reshape(shape)
        returns = results.return_.exactly()[:plays].reshape(shape)
        lengths = results.length[:plays].reshape(shape)
        rows["return_"] = np.where(failed.any(axis=1), np.nan, returns.mean(axis=1))
        rows["sign_return"] = results.signs[:plays].reshape(shape).mean(axis=1)
        rows["length"] = lengths.sum(axis=1)
        for row in np.flatnonzero(failed.any(axis=1)).tolist():
            episode = int(np.flatnonzero(failed[row])[0])
            why = reason(
                int(failed[row, episode]), float(results.return_.value[row * shape[1] + episode])
            )
            self.failures.append(
                failure_from_text(f"{why} at step {lengths[row, episode]}", position=jobs[row])
            )
        behaviours, last = None, results.observation[:plays].reshape(*shape, -1)
        if self._behaviour_indices is not None:
            behaviours = last[:, :, list(self._behaviour_indices)]
            self._set_behaviours(rows, behaviours, jobs)
        if self._quantities.sources:
            self._set_quantities(
                rows, self._quantities.at_ends(returns, lengths, last, behaviours), jobs
            )
        if isinstance(results.totals, ObservationTotals):
            self._add_observations(results.totals, lengths, jobs)

    def _set_behaviours(self, rows: Rows, last: Array, jobs: range) -> None:
        """Set the behaviours to the means over episodes of `last`, [jobs, episodes, behaviour]."""
        rows[BEHAVIOUR] = last.mean(axis=1, dtype=np.float64)
        wrong = ~np.isfinite(last).all(axis=(1, 2)) & ~np.isnan(rows["return_"])
        rows["return_"][wrong] = np.nan
        for row in np.flatnonzero(wrong).tolist():
            self.failures.append(
                failure_from_text(
                    f"the behaviour is {rows[BEHAVIOUR][row].tolist()}", position=jobs[row]
                )
            )

    def _set_quantities(self, rows: Rows, at_ends: Float64, jobs: range) -> None:
        """Set the quantities to the means over episodes of `at_ends`.

        These are float64[jobs, episodes, names].
        """
        own = self._quantities
        for row, text in fill_finite(own.quantities, rows, at_ends.mean(axis=1), own.sources):
            self.failures.append(
                failure_from_text(f"{text} at the end of an episode", position=jobs[row])
            )

    def _add_observations(self, totals: ObservationTotals, lengths: Array, jobs: range) -> None:
        """Add the sums of each job's episodes in order.

        They are sums of differences from the first observation or from 0.
        """
        first, total, squares = (
            totals.first.astype(np.float64),
            totals.total.exactly(),
            totals.squares.exactly(),
        )
        for row in np.flatnonzero(self._batch.observe[jobs.start : jobs.stop]).tolist():
            plays = range(row * self._form.episodes, (row + 1) * self._form.episodes)
            origin = first[plays.start] * self._batch.centred
            sums, squared = np.zeros_like(origin), np.zeros_like(origin)
            for play in plays:
                shift, count = first[play] - origin, lengths.flat[play]
                sums += total[play] + count * shift
                squared += squares[play] + 2 * shift * total[play] + count * np.square(shift)
            if not np.isfinite(squared).all() and not np.isnan(self.rows["return_"][jobs[row]]):
                self.rows["return_"][jobs[row]] = np.nan
                self.failures.append(
                    failure_from_text(
                        "the sum of the squares of its observations exceeds the numbers of "
                        "float32, for observation_normalization",
                        position=jobs[row],
                    )
                )
            self.sums.set_job(jobs[row], sums, squared, float(lengths[row].sum()), origin)


def reason(code: int, return_: float) -> str:
    """Return the reason of a failed play as text."""
    texts = {
        NAN_OBSERVATION: "the observation is NaN",
        INFINITE_OBSERVATION: "the observation is infinite",
        NAN_ACTION: f"the action of the policy is not finite ({DIVERGED})",
    }
    return texts.get(code, f"the return is {return_}")
