"""Options of the actor-critic, and checks that they fit the problem."""

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
    """`algorithm.entropy:`, the weight beta of the entropy."""

    start: NonNegative = option("initial weight of the entropy", 0.1)
    end: NonNegative = option("final weight of the entropy, reached linearly", 0.0)
    episodes: Count | None = option("training episodes until the final weight; null: constant weight", None)
    timesteps: Count | None = option("training timesteps until the final weight, instead of `episodes`", None)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        if self.episodes is not None and self.timesteps is not None:
            yield "timesteps", f"is {self.timesteps}, and episodes {self.episodes}: expected one of them"

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if self.episodes is None and self.timesteps is None:
            yield from unused(self, ("end",), "episodes and timesteps are null, so the weight stays at its start")


@options
class Options:
    """`algorithm:` with `kind: actor_critic`."""

    kind: Literal["actor_critic"] = option("name of the algorithm", "actor_critic")
    batch_size: Count = option(
        "episodes per update; with update_every: number of environments per rank, stepped together", 16
    )
    updates: Literal["synchronous", "asynchronous"] = option(
        "synchronous: one batch for all ranks; asynchronous: one batch per rank, applied as it arrives", "synchronous"
    )
    update_every: Count | None = option(
        "steps per update, after which episodes continue (asynchronous updates only; a restart begins new episodes, "
        "since checkpoints do not store environments); null: whole episodes",
        None,
    )
    discount: Probability = option("discount factor gamma", 0.8)
    gae_lambda: Probability = option("lambda of generalised advantage estimation; 1: return minus value", 1.0)
    value_weight: NonNegative = option("weight of the squared error of the value", 0.25)
    entropy: Entropy = option("entropy bonus, for exploration", default_factory=Entropy)
    unroll: Count | None = option("maximum steps of backpropagation through time; null: the whole episode", None)
    reward_clip: Positive | None = option(
        "clipping of rewards in the loss, to [-clip, clip]; null: no clipping. The last reward in the observation is "
        "clipped by task.reward_clip of bandits, or by reward_clip of the wrapper LastStep",
        None,
    )
    gradient_clip: Positive | None = option("maximum gradient norm; null: no clipping", 1.0)
    evaluation_actions: Literal["sampled", "greedy"] = option(
        "actions in evaluations: sampled as in training, or greedy (the most probable)", "sampled", may_change=True
    )
    optimizer: optimizers.Options = option("optimizer of the parameters", default_factory=optimizers.Options)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        every = self.update_every
        if every is not None and self.updates != "asynchronous":
            text = "environments continue from update to update, so each rank needs its own updates"
            yield "update_every", f"is {every}, but updates are {self.updates}: {text} (try updates: asynchronous)"
        if every is not None and self.unroll is not None and self.unroll > every:
            text = f"is {self.unroll}, but gradients pass through at most the {every} steps of update_every"
            yield "unroll", f"{text}: leave it out"


def incompatibilities(options: Options, problem: TrajectoryProblem) -> Iterator[tuple[str, str]]:
    """Yield reasons why the problem does not fit the options: (key, text)."""
    actions = problem.spaces.actions
    if not isinstance(actions, Discrete):
        kind = "Box" if isinstance(actions, Box) else str(actions)
        yield "task", f"{problem.name} has {kind} actions, actor_critic needs Discrete ones: try algorithm.kind: es"
    if problem.episodes_per_job != 1:
        text = f"is {problem.episodes_per_job}, expected 1: actor_critic uses algorithm.batch_size episodes per update"
        yield "task.episodes_per_job", text
    if options.update_every is not None and problem.segments is None:
        text = f"is {options.update_every}, but {problem.name} supports whole episodes only: expected null"
        if problem.compiled is not None:
            text += ", or task: {kind: episodes, env_id: 'hpc_es.tasks.bandits:hpc_es/Bandit-v0'}"
        yield "algorithm.update_every", text
    yield from _policy_misfits(options, problem.policy)
    if options.unroll is not None and problem.time_limit is not None and options.unroll > problem.time_limit:
        text = (
            f"is {options.unroll}, but an episode has at most {problem.time_limit} steps (try null, the whole episode)"
        )
        yield "algorithm.unroll", text


def _policy_misfits(options: Options, policy: Policy) -> Iterator[tuple[str, str]]:
    from hpc_es.policies.networks.differentiable import DifferentiableNetwork

    network = DifferentiableNetwork.of(policy)
    if network is None:
        yield (
            "policy",
            f"is {type(policy).__name__}, which is not differentiable here: expected the kind 'lstm' or 'mlp'",
        )
    elif not network.is_recurrent and options.unroll is not None:
        yield "algorithm.unroll", f"is {options.unroll}, but the policy mlp has no memory: leave it out"
