"""Rollouts in a compiled call: lanes, which play episodes side by side, each at its own step.

A play is an episode of a job, with the number `job * episodes + episode`. A lane whose episode has
ended waits until enough lanes do; then their results are stored and they start the next plays. The
result of a play depends on its parameters and its key, and on the number of lanes, for which the
code is compiled; not on its lane or its start.

A lane without a play has the play number `plays`. The fields of `Lane` are [lanes, ...].

Sums are compensated (Kahan 1965), so that float32 is precise enough for episodes of any length. XLA
does not reorder these additions unless fast-math flags are set.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import Actions, Box, Float64, ObservationSpec
from hpc_es.core.policy import Pure, Tree
from hpc_es.policies.networks.heads import normalised
from hpc_es.policies.networks.jax_low_rank import FactoredPolicy
from hpc_es.tasks.jax_episodes.call_shape import (
    INFINITE_OBSERVATION,
    NAN_ACTION,
    NAN_OBSERVATION,
    NOT_FINITE,
    CallShape,
)
from hpc_es.tasks.jax_episodes.environments import KEY, EnvState, JaxArray, Traced, zeros

T = TypeVar("T")  # a tree of arrays
# when 1 / WAITING of the lanes wait, the others are interrupted and the waiting ones restarted
WAITING = 8


class Total(NamedTuple):
    """A compensated sum: its value, and the rounding error to subtract."""

    value: JaxArray
    excess: JaxArray

    def plus(self, term: JaxArray) -> Total:
        """Return the sum with a further term."""
        corrected = term - self.excess
        value = self.value + corrected
        return Total(value, (value - self.value) - corrected)

    def exactly(self) -> Float64:
        """Return the sum in float64, on the host."""
        return np.asarray(self.value, np.float64) - np.asarray(self.excess, np.float64)


class ObservationTotals(NamedTuple):
    """Sums of the observations of a play, as differences from its first one.

    Squares stay precise this way.
    """

    first: JaxArray  # float32[observations]
    total: Total  # of the differences
    squares: Total

    def plus(self, observation: JaxArray, step: JaxArray, counts: JaxArray) -> ObservationTotals:
        """Return the sums with float32[observations] of a step, if `counts` is true.

        Steps are numbered from 0.
        """
        first = jnp.where(step == 0, observation, self.first)
        difference = jnp.where(counts, observation - first, 0)
        return ObservationTotals(
            first, self.total.plus(difference), self.squares.plus(difference * difference)
        )


def no_observations(rows: int, width: int) -> ObservationTotals:
    """Return sums of no observations, float32[rows, observations]."""

    def zeros() -> JaxArray:
        return np.zeros((rows, width), np.float32)

    return ObservationTotals(zeros(), Total(zeros(), zeros()), Total(zeros(), zeros()))


class CallInputs(NamedTuple):
    """The arguments of a call."""

    theta: JaxArray  # float32[jobs, params]
    # weights that all candidates have in common, by name, if they have factors; else ()
    common: JaxArray
    keys: JaxArray  # uint32[plays, 2], of the environment
    noise_keys: JaxArray  # uint32[plays, 2], for the noise of actions, or for sampling them
    count: JaxArray  # int32: number of plays; the others are padding
    reward_offset: JaxArray  # float32
    noise_std: JaxArray  # float32
    normaliser: JaxArray  # (mean, deviation, clip), or ()


class PlayResults(NamedTuple):
    """The results of plays, final or so far."""

    return_: Total
    signs: JaxArray  # int32: the sum of the rewards' signs
    length: JaxArray  # int32, in steps
    failed: JaxArray  # int8: 0 or a code of `call_shape`
    totals: ObservationTotals | tuple[()]
    observation: JaxArray  # [*shape], the last


class Lane(NamedTuple):
    """The state of a lane's episode."""

    play: JaxArray  # int32
    done: JaxArray  # bool
    key: JaxArray  # uint32[2], of the steps
    noise_key: JaxArray  # uint32[2]
    state: EnvState
    memory: Tree
    results: PlayResults  # `observation` is the next input of the policy


class Carry(NamedTuple):
    """The state of the compiled loop."""

    lanes: Lane
    results: PlayResults  # [plays]
    next: JaxArray  # int32: the next play to start
    steps: JaxArray  # int32: number of steps of the call so far


def initial_carry(env: Traced, pure: Pure, form: CallShape) -> Carry:
    """Return the carry at the start of a call, without plays."""
    lanes, spec = form.lanes, env.spaces.observations
    lane = Lane(
        play=np.full(lanes, form.plays, np.int32),
        done=np.ones(lanes, np.bool_),
        key=np.zeros((lanes, 2), np.uint32),
        noise_key=np.zeros((lanes, 2), np.uint32),
        state=zeros(env.template, lanes),
        memory=zeros(pure.memory, lanes),
        results=no_results(form, lanes, spec),
    )
    return Carry(lane, no_results(form, form.plays, spec), np.int32(0), np.int32(0))


def no_results(form: CallShape, rows: int, spec: ObservationSpec) -> PlayResults:
    """Return results of zeros, [rows, ...]."""
    none = Total(np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    totals = no_observations(rows, spec.size) if form.normalised else ()
    last = np.zeros((rows, *spec.shape), spec.dtype)
    return PlayResults(
        none,
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int8),
        totals,
        last,
    )


def segment(
    env: Traced,
    policy: Pure | FactoredPolicy,
    form: CallShape,
    carry: Carry,
    inputs: CallInputs,
    steps: JaxArray,
) -> tuple[Carry, JaxArray]:
    """Return the carry, and whether plays are left (bool[]), after a segment.

    It has `steps` steps, or ends with the last of the plays.
    """
    last = carry.steps + steps
    pure = policy.bound(inputs.common) if isinstance(policy, FactoredPolicy) else policy

    def has_plays(carry: Carry) -> JaxArray:
        return jnp.any(carry.lanes.play < form.plays) | (carry.next < inputs.count)

    def may_step(carry: Carry) -> JaxArray:
        live, waiting = ~carry.lanes.done, carry.lanes.done & (carry.lanes.play < form.plays)
        enough = (jnp.sum(waiting) * WAITING >= form.lanes) & (carry.next < inputs.count)
        return jnp.any(live) & ~enough & (carry.steps < last)

    def refill_and_step(state: tuple[Carry, Tree]) -> tuple[Carry, Tree]:
        before, parameters = state
        carry = refill(env, pure, form, before, inputs)
        play = carry.lanes.play
        is_new = (play != before.lanes.play) & (play < form.plays)
        parameters = loaded(pure, form, parameters, inputs, play, is_new)

        def step(carry: Carry) -> Carry:
            one_step = partial(step_lane, env, pure, form, inputs)
            return carry._replace(
                lanes=jax.vmap(one_step)(carry.lanes, parameters), steps=carry.steps + 1
            )

        return jax.lax.while_loop(may_step, step, carry), parameters

    def may_go_on(state: tuple[Carry, Tree]) -> JaxArray:
        carry, _ = state
        return has_plays(carry) & (carry.steps < last)

    # Parameters are not a part of the carry, which is copied at the start and the end of a call.
    shapes = jax.eval_shape(pure.parameters, jax.ShapeDtypeStruct((form.params,), jnp.float32))
    none = jax.tree.map(lambda leaf: jnp.zeros((form.lanes, *leaf.shape), leaf.dtype), shapes)
    parameters = loaded(pure, form, none, inputs, carry.lanes.play, carry.lanes.play < form.plays)
    carry, _ = jax.lax.while_loop(may_go_on, refill_and_step, (carry, parameters))
    return carry, has_plays(carry)


def loaded(
    pure: Pure,
    form: CallShape,
    parameters: Tree,
    inputs: CallInputs,
    play: JaxArray,
    changed: JaxArray,
) -> Tree:
    """Return the parameters of all lanes, read for the plays of those that `changed`.

    The latter is bool[lanes]. On a CPU they are read in turn: few of many lanes change at a time,
    and XLA's gather is slow there.
    """
    job = jnp.minimum(play, form.plays - 1) // form.episodes
    if jax.default_backend() != "cpu":
        of_job: Tree = jax.vmap(lambda job: pure.parameters(inputs.theta[job]))(job)
        return of_job
    lanes = jnp.argsort(~changed)  # those that changed first

    def read(number: JaxArray, parameters: Tree) -> Tree:
        lane = lanes[number]
        own = pure.parameters(jax.lax.dynamic_index_in_dim(inputs.theta, job[lane], keepdims=False))
        updated: Tree = jax.tree.map(
            lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, lane, 0), parameters, own
        )
        return updated

    result: Tree = jax.lax.fori_loop(0, jnp.sum(changed, dtype=jnp.int32), read, parameters)
    return result


def step_lane(
    env: Traced, pure: Pure, form: CallShape, inputs: CallInputs, lane: Lane, parameters: Tree
) -> Lane:
    """Return a lane after a step.

    A lane that is done is computed too, but its results do not change. `parameters` are those of
    its play, a tree of arrays.
    """
    before, live, t = lane.results, ~lane.done, lane.results.length
    observation = before.observation
    x = normalised(jnp, observation, inputs.normaliser) if form.normalised else observation
    # `action` are logits if actions are sampled
    memory, action = pure.apply(parameters, lane.memory, x)
    has_no_action = jnp.isnan(action).any() if form.sampled else ~jnp.isfinite(action).all()
    if form.sampled:
        action = sampled(action, step_key(lane.noise_key, t)) + env.spaces.actions.start  # type: ignore[union-attr]
    elif form.noisy:
        action = noisy(env.spaces.actions, action, inputs.noise_std, step_key(lane.noise_key, t))
    elif not isinstance(env.spaces.actions, Box):
        action = action.astype(jnp.int32)
    state, observation, reward, terminated = env.step(step_key(lane.key, t), lane.state, action)
    reward = reward + inputs.reward_offset
    return_, length = before.return_.plus(reward), t + 1
    seen = observation_failure(observation)
    failed = jnp.where(seen > 0, seen, jnp.where(jnp.isfinite(return_.value), 0, NOT_FINITE))
    # the environment has got an arbitrary one
    failed = jnp.where(has_no_action, NAN_ACTION, failed)
    totals = before.totals
    if isinstance(totals, ObservationTotals):
        totals = totals.plus(before.observation, t, live)
    after = PlayResults(
        return_,
        before.signs + jnp.sign(reward).astype(jnp.int32),
        length,
        failed.astype(jnp.int8),
        (),
        observation,
    )
    kept = select(live, after, before._replace(totals=()))._replace(totals=totals)
    done = lane.done | terminated | (length >= form.limit) | (failed > 0)
    return lane._replace(done=done, state=state, memory=memory, results=kept)


def observation_failure(observation: JaxArray) -> JaxArray:
    """Return the code of a failure, int32[], if an observation [*shape] is not finite, else 0."""
    infinite = jnp.where(jnp.isfinite(observation).all(), 0, INFINITE_OBSERVATION)
    return jnp.where(jnp.isnan(observation).any(), NAN_OBSERVATION, infinite)


def step_key(key: JaxArray, step: JaxArray) -> JaxArray:
    """Return the key of a step, a function of the play's key uint32[2] and the step's number."""
    return jax.random.fold_in(jax.random.wrap_key_data(key, impl=KEY), step)


def sampled(logits: JaxArray, key: JaxArray) -> JaxArray:
    """Return an action, int32[], drawn from the softmax of logits [actions]."""
    return jax.random.categorical(key, logits).astype(jnp.int32)


def noisy(space: Actions, action: JaxArray, std: JaxArray, key: JaxArray) -> JaxArray:
    """Return a Box action float32[actions] with normal noise, clipped to the bounds."""
    assert isinstance(space, Box)
    noise = jax.random.normal(key, action.shape, jnp.float32)
    return jnp.minimum(jnp.maximum(action + std * noise, space.low), space.high)


def select(condition: JaxArray, this: T, other: T) -> T:
    """Return a tree of `this` where the condition is true, else `other`.

    Leaves are [*shape of the condition, ...].
    """

    def choose(a: JaxArray, b: JaxArray) -> JaxArray:
        further = getattr(a, "ndim", 0) - condition.ndim
        return jnp.where(condition.reshape(condition.shape + (1,) * further), a, b)

    selected: T = jax.tree.map(choose, this, other)
    return selected


def refill(env: Traced, pure: Pure, form: CallShape, carry: Carry, inputs: CallInputs) -> Carry:
    """Store the results of the lanes that are done, and start the next plays in them."""
    lanes, done = carry.lanes, carry.lanes.done
    index = jnp.where(done, lanes.play, form.plays)  # an index beyond the end is dropped
    results = jax.tree.map(
        lambda all, one: all.at[index].set(one, mode="drop"), carry.results, lanes.results
    )
    number = carry.next + jnp.cumsum(done, dtype=jnp.int32) - 1
    taken = done & (number < inputs.count)
    play = jnp.where(taken, number, 0)
    new = jax.vmap(lambda play: start_play(env, pure, form, play, inputs))(play)
    without_done = lanes._replace(play=jnp.where(done, form.plays, lanes.play))
    next_play = jnp.minimum(carry.next + jnp.sum(done, dtype=jnp.int32), inputs.count)
    return carry._replace(lanes=select(taken, new, without_done), results=results, next=next_play)


def start_play(
    env: Traced, pure: Pure, form: CallShape, play: JaxArray, inputs: CallInputs
) -> Lane:
    """Return a lane at the start of a play."""
    first, steps = jax.random.split(jax.random.wrap_key_data(inputs.keys[play], impl=KEY))
    state, observation = env.reset(first)
    none = jax.tree.map(
        lambda array: jnp.asarray(array[0]), no_results(form, 1, env.spaces.observations)
    )
    failed = observation_failure(observation).astype(jnp.int8)
    return Lane(
        play=play.astype(jnp.int32),
        done=failed > 0,
        key=jax.random.key_data(steps),
        noise_key=inputs.noise_keys[play],
        state=state,
        memory=jax.tree.map(jnp.asarray, pure.memory),
        results=none._replace(failed=failed, observation=observation),
    )
