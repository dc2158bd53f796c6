"""The options of the actor-critic, and what does not go together with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hpc_es.algorithms.common import optimizers
from hpc_es.config.options import Count, NonNegative, Positive, Probability, option, options, unused
from hpc_es.core.data import Box, Discrete
from hpc_es.core.interfaces import TrajectoryProblem
from hpc_es.core.policy import Policy


@options
class Entropy:
    """`algorithm.entropy:`, beta."""

    start: NonNegative = option("the weight of the entropy in the first update", 0.1)
    end: NonNegative = option("what it falls to in a straight line", 0.0)
    episodes: Count | None = option("training episodes until then; null: it stays at its start", None)
    timesteps: Count | None = option("steps of training episodes until then, in place of `episodes`", None)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single option shows: (key, text)."""
        if self.episodes is not None and self.timesteps is not None:
            yield "timesteps", f"is {self.timesteps}, and episodes {self.episodes}: expected one of them"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if self.episodes is None and self.timesteps is None:
            yield from unused(self, ("end",), "episodes and timesteps are null, so the weight stays at its start")


@options
class Options:
    """`algorithm:` with `kind: actor_critic`."""

    kind: Literal["actor_critic"] = option("name of the algorithm", "actor_critic")
    batch_size: Count = option("episodes an update; with update_every: environments of a rank, stepped together", 16)
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: all ranks share a batch; asynchronous: a batch a rank, followed as it comes", "synchronous"
    )
    update_every: Count | None = option(
        "steps an update, after which episodes go on (asynchronous updates only; a restart begins new episodes, as no "
        "checkpoint holds environments); null: whole episodes",
        None,
    )
    discount: Probability = option("of a reward a step later", 0.8)
    gae_lambda: Probability = option("lambda of generalised advantage estimation; 1: return minus value", 1.0)
    value_weight: NonNegative = option("of the squared error of the value", 0.25)
    entropy: Entropy = option("what keeps the policy trying", default_factory=Entropy)
    unroll: Count | None = option("steps that gradients pass through a memory; null: the whole episode", None)
    reward_clip: Positive | None = option(
        "rewards to learn from are clipped to [-clip, clip]; null: not. The last reward that a policy sees is clipped "
        "by task.reward_clip of bandits, or by reward_clip of the wrapper LastStep",
        None,
    )
    gradient_clip: Positive | None = option("longest gradient; null: any", 1.0)
    evaluation_actions: Literal["sampled", "greedy"] = option(
        "of evaluation episodes in training: drawn as in training, or the most probable", "sampled", may_change=True
    )
    optimizer: optimizers.Options = option("how the parameters follow", default_factory=optimizers.Options)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single option shows: (key, text)."""
        every = self.update_every
        if every is not None and self.updates != "asynchronous":
            text = "the ranks' environments go on from update to update, so each rank needs updates of its own"
            yield "update_every", f"is {every}, but updates are {self.updates}: {text} (try updates: asynchronous)"
        if every is not None and self.unroll is not None and self.unroll > every:
            text = f"is {self.unroll}, but no gradient passes further than the {every} steps of update_every"
            yield "unroll", f"{text}: leave it out"


def incompatibilities(options: Options, problem: TrajectoryProblem) -> Iterator[tuple[str, str]]:
    """Yield why this problem does not fit: (key, text)."""
    actions = problem.spaces.actions
    if not isinstance(actions, Discrete):
        kind = "Box" if isinstance(actions, Box) else str(actions)
        yield "task", f"{problem.name} has {kind} actions, actor_critic needs Discrete ones: try algorithm.kind: es"
    if problem.episodes_per_job != 1:
        text = f"is {problem.episodes_per_job}, expected 1: actor_critic takes algorithm.batch_size episodes an update"
        yield "task.episodes_per_job", text
    if options.update_every is not None and problem.segments is None:
        text = f"is {options.update_every}, but {problem.name} can only be played in whole episodes: expected null"
        yield "algorithm.update_every", text + _instead(problem)
    yield from _policy_misfits(options, problem.policy)
    if options.unroll is not None and problem.time_limit is not None and options.unroll > problem.time_limit:
        text = (
            f"is {options.unroll}, but an episode has at most {problem.time_limit} steps (try null, the whole episode)"
        )
        yield "algorithm.unroll", text


def _instead(problem: TrajectoryProblem) -> str:
    if problem.compiled is None:
        return ""
    return ", or task: {kind: episodes, env_id: 'hpc_es.tasks.bandits:hpc_es/Bandit-v0'}"


def _policy_misfits(options: Options, policy: Policy) -> Iterator[tuple[str, str]]:
    from hpc_es.policies.networks.differentiable import DifferentiableNetwork

    network = DifferentiableNetwork.of(policy)
    if network is None:
        yield "policy", f"is {type(policy).__name__}, whose gradient is not known: expected the kind 'lstm' or 'mlp'"
    elif not network.is_recurrent and options.unroll is not None:
        yield "algorithm.unroll", f"is {options.unroll}, but the policy mlp remembers nothing: leave it out"
