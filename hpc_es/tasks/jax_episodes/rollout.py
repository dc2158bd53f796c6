"""Sums in float32 that lose nothing worth having, over episodes of any length (Kahan 1965).

The compiler keeps them as they are written: XLA does not reorder additions unless it is told to be fast.


Lanes: episodes that run side by side in one compiled call, each at its own step.

A play is an episode of a job: number `job * episodes + episode`. A lane whose episode has ended waits until enough of
them do, then gives its results away and takes the next play. What a play gives depends on its parameters and its key
alone, and on the number of lanes, which the compiled code is made for: not on its lane, nor on when it was taken.

`play` is `plays` of a lane that has none; `Lane` fields are [lanes, ...].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.data import (
    Box,
    Float64,
    ObservationSpec,
)
from hpc_es.core.policy import Pure
from hpc_es.policies.networks.heads import normalised
from hpc_es.tasks.jax_episodes.environments import KEY, Traced, zeros
from hpc_es.tasks.jax_episodes.setup import NAN_OBSERVATION, NOT_FINITE, Form


class Total(NamedTuple):
    """A sum, and what it has too much."""

    value: Any
    excess: Any

    def plus(self, term: Any) -> Total:
        """Return the sum with a further term."""
        corrected = term - self.excess
        value = self.value + corrected
        return Total(value, (value - self.value) - corrected)

    def exactly(self) -> Float64:
        """Return the sum in float64, on the host."""
        return np.asarray(self.value, np.float64) - np.asarray(self.excess, np.float64)


class Seen(NamedTuple):
    """The observations of a play, as differences from the first of them: so that squares lose nothing either."""

    first: Any  # float32[observations]
    total: Total  # of the differences
    squares: Total

    def plus(self, observation: Any, step: Any, counts: Any) -> Seen:
        """Return this with the observation of a step, counted from 0, if it counts."""
        first = jnp.where(step == 0, observation, self.first)
        apart = jnp.where(counts, observation - first, 0)
        return Seen(first, self.total.plus(apart), self.squares.plus(apart * apart))


def nothing_seen(rows: int, width: int) -> Seen:
    """Return sums of nothing, [rows, observations]."""

    def zeros() -> Any:
        return np.zeros((rows, width), np.float32)

    return Seen(zeros(), Total(zeros(), zeros()), Total(zeros(), zeros()))


WAITING = 8  # one lane in so many may wait before the others are held up for a reset


class Inputs(NamedTuple):
    """What a call is about; nothing of it is compiled in."""

    theta: Any  # float32[jobs, params]
    keys: Any  # uint32[plays, 2], of the environment
    noise_keys: Any  # uint32[plays, 2], of the actions
    count: Any  # int32: plays there are, the others are padding
    reward_offset: Any  # float32
    noise_std: Any  # float32
    normaliser: Any  # (mean, deviation, clip), or ()


class Results(NamedTuple):
    """What a play has so far, or what it gave."""

    return_: Total
    signs: Any  # int32: the sum of the rewards' signs
    length: Any  # int32, in steps
    failed: Any  # int8: 0, or why it failed
    seen: Seen | tuple[()]
    observation: Any  # [*shape], the last


class Lane(NamedTuple):
    """The episode of a lane."""

    play: Any  # int32
    done: Any  # bool
    key: Any  # uint32[2], of the steps
    noise_key: Any  # uint32[2]
    parameters: Any  # of the policy, taken apart
    state: Any
    memory: Any
    results: Results  # its observation is what the policy sees next


class Carry(NamedTuple):
    """What goes from step to step, and from segment to segment."""

    lanes: Lane
    results: Results  # [plays]
    next: Any  # int32: the play to be taken next
    steps: Any  # int32: of the call so far


def begun(env: Traced, pure: Pure, parameters: Any, form: Form) -> Carry:
    """Return the carry that a call begins with: no lane has a play yet. `parameters` are shapes of one row."""
    lanes, spec = form.lanes, env.spaces.observations
    lane = Lane(
        play=np.full(lanes, form.plays, np.int32),
        done=np.ones(lanes, np.bool_),
        key=np.zeros((lanes, 2), np.uint32),
        noise_key=np.zeros((lanes, 2), np.uint32),
        parameters=zeros(parameters, lanes),
        state=zeros(env.template, lanes),
        memory=zeros(pure.memory, lanes),
        results=no_results(form, lanes, spec),
    )
    return Carry(lane, no_results(form, form.plays, spec), np.int32(0), np.int32(0))


def no_results(form: Form, rows: int, spec: ObservationSpec) -> Results:
    """Return results of zeros, [rows]."""
    none = Total(np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    seen = nothing_seen(rows, spec.size) if form.normalised else ()
    last = np.zeros((rows, *spec.shape), spec.dtype)
    return Results(none, np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.int8), seen, last)


def segment(env: Traced, pure: Pure, form: Form, carry: Carry, inputs: Inputs, steps: Any) -> Any:
    """Return (carry, whether plays are left) after so many steps, or at the end of all plays."""
    last = carry.steps + steps

    def goes_on(carry: Carry) -> Any:
        return jnp.any(carry.lanes.play < form.plays) | (carry.next < inputs.count)

    def stepping(carry: Carry) -> Any:
        live, waiting = ~carry.lanes.done, carry.lanes.done & (carry.lanes.play < form.plays)
        enough = (jnp.sum(waiting) * WAITING >= form.lanes) & (carry.next < inputs.count)
        return jnp.any(live) & ~enough & (carry.steps < last)

    def stepped(carry: Carry) -> Carry:
        lanes = jax.vmap(lambda lane: advanced(env, pure, form, lane, inputs))(carry.lanes)
        return carry._replace(lanes=lanes, steps=carry.steps + 1)

    def run(carry: Carry) -> Carry:
        after: Carry = jax.lax.while_loop(stepping, stepped, refilled(env, pure, form, carry, inputs))
        return after

    carry = jax.lax.while_loop(lambda carry: goes_on(carry) & (carry.steps < last), run, carry)
    return carry, goes_on(carry)


def advanced(env: Traced, pure: Pure, form: Form, lane: Lane, inputs: Inputs) -> Lane:
    """Return a lane after a step; one that is done runs on, but counts nothing."""
    before, live, t = lane.results, ~lane.done, lane.results.length
    observation = before.observation
    inner = normalised(jnp, observation, inputs.normaliser) if form.normalised else observation
    memory, action = pure.apply(lane.parameters, lane.memory, inner)
    if form.noisy:
        action = noisy(env.spaces.actions, action, inputs.noise_std, at(lane.noise_key, t))
    elif not isinstance(env.spaces.actions, Box):
        action = action.astype(jnp.int32)
    state, observation, reward, terminated = env.step(at(lane.key, t), lane.state, action)
    reward = reward + inputs.reward_offset
    return_, length = before.return_.plus(reward), t + 1
    is_nan = jnp.isnan(observation).any()
    failed = jnp.where(is_nan, NAN_OBSERVATION, jnp.where(jnp.isfinite(return_.value), 0, NOT_FINITE))
    seen = before.seen
    if isinstance(seen, Seen):
        seen = seen.plus(before.observation, t, live)
    after = Results(
        return_, before.signs + jnp.sign(reward).astype(jnp.int32), length, failed.astype(jnp.int8), (), observation
    )
    kept = select(live, after, before._replace(seen=()))._replace(seen=seen)
    done = lane.done | terminated | (length >= form.limit) | (failed > 0)
    return lane._replace(done=done, state=state, memory=memory, results=kept)


def at(key: Any, step: Any) -> Any:
    """Return the key of a step: a function of the play and the step, whenever it is taken."""
    return jax.random.fold_in(jax.random.wrap_key_data(key, impl=KEY), step)


def noisy(space: Any, action: Any, std: Any, key: Any) -> Any:
    """Return a Box action with normal noise, within the bounds again."""
    noise = jax.random.normal(key, action.shape, jnp.float32)
    return jnp.minimum(jnp.maximum(action + std * noise, space.low), space.high)


def select(condition: Any, this: Any, other: Any) -> Any:
    """Return `this` where the condition holds, else `other`: of trees, [...] as the condition or with further axes."""

    def choose(a: Any, b: Any) -> Any:
        further = getattr(a, "ndim", 0) - condition.ndim
        return jnp.where(condition.reshape(condition.shape + (1,) * further), a, b)

    return jax.tree.map(choose, this, other)


def refilled(env: Traced, pure: Pure, form: Form, carry: Carry, inputs: Inputs) -> Carry:
    """Return the carry with the results of the lanes that are done put away, and the next plays begun in them."""
    lanes, done = carry.lanes, carry.lanes.done
    put = jnp.where(done, lanes.play, form.plays)  # beyond the end: dropped
    results = jax.tree.map(lambda all, one: all.at[put].set(one, mode="drop"), carry.results, lanes.results)
    number = carry.next + jnp.cumsum(done, dtype=jnp.int32) - 1
    taken = done & (number < inputs.count)
    play = jnp.where(taken, number, 0)
    new = jax.vmap(lambda play: started(env, pure, form, play, inputs))(play)
    left = lanes._replace(play=jnp.where(done, form.plays, lanes.play))
    after = jnp.minimum(carry.next + jnp.sum(done, dtype=jnp.int32), inputs.count)
    return carry._replace(lanes=select(taken, new, left), results=results, next=after)


def started(env: Traced, pure: Pure, form: Form, play: Any, inputs: Inputs) -> Lane:
    """Return a lane at the begin of a play."""
    first, steps = jax.random.split(jax.random.wrap_key_data(inputs.keys[play], impl=KEY))
    state, observation = env.reset(first)
    is_nan = jnp.isnan(observation).any()
    none = jax.tree.map(lambda each: jnp.asarray(each[0]), no_results(form, 1, env.spaces.observations))
    failed = jnp.where(is_nan, NAN_OBSERVATION, 0).astype(jnp.int8)
    return Lane(
        play=play.astype(jnp.int32),
        done=is_nan,
        key=jax.random.key_data(steps),
        noise_key=inputs.noise_keys[play],
        parameters=pure.parameters(inputs.theta[play // form.episodes]),
        state=state,
        memory=jax.tree.map(jnp.asarray, pure.memory),
        results=none._replace(failed=failed, observation=observation),
    )
