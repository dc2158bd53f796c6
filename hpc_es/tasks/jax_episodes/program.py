"""A compiled call: the plays of some jobs, in segments of so many steps, while the rank goes on listening."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hpc_es.core.acting import PurePolicy
from hpc_es.core.data import Poll
from hpc_es.core.errors import ConfigError
from hpc_es.tasks.jax_episodes.environments import Traced
from hpc_es.tasks.jax_episodes.form import Form
from hpc_es.tasks.jax_episodes.lanes import Carry, Inputs, Results, begun, segment

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
