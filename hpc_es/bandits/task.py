"""Bandits as a task of meta-learning (Wang et al. 2016, arXiv:1611.05763): each episode is a bandit never seen before.

A chunk's episodes are played in lockstep; where the policy can act for several episodes of a job at once, those too.
What a job gives depends on its parameters and seeds alone: an episode is that of the Gymnasium environment
`hpc_es/Bandit-v0` after reset(seed=seed). Importing this registers the environment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import gymnasium
import numpy as np

from hpc_es.bandits.optimal import optimal_regret, optimal_reward
from hpc_es.bandits.setting import INFO_KEYS, Lockstep, RewardInput, Setting, TimeInput, setting
from hpc_es.config.options import Count, Natural, Positive, option, options, unused
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.core.data import (
    INFO,
    SIGN_RETURN,
    Discrete,
    Float64,
    Outcome,
    Poll,
    Spaces,
    flat_observations,
    info_numbers,
    row_dtype,
)
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.interfaces import Offers, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.messages import nearest
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.tasks.observation_statistics import ObservationSums
from hpc_es.tasks.policy_problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_normalization,
)

__all__ = ["Bandits", "Options", "build", "optimal_regret", "optimal_reward"]

OFFERS = Offers(problems=("vectors", "trajectories"), policy=True, any_chunks=True, info=True)
ENVIRONMENT = "hpc_es/Bandit-v0"
if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, "hpc_es.bandits.environment:Bandit")


@options
class Options:
    """`task:` with `kind: bandits`."""

    kind: Literal["bandits"] = option("name of the task", "bandits")
    distribution: str = option(
        "independent, uniform, easy, medium, hard, eleven, restless, k_armed, ... as bandit_families.py has them",
        "independent",
    )
    num_trials: Count = option("pulls an episode", 100)
    family: Mapping[str, Any] = option("keywords of the distribution, such as {num_arms: 5}", default_factory=dict)
    meta: bool = option("other arms in each episode; false: the same for ever", True)
    arms_seed: Natural = option("what the arms are drawn from where meta is false", 0)
    reward: RewardInput = option("how the policy sees the last reward; none: not at all", "value")
    action: bool = option("whether the policy sees its last action, one-hot", True)
    time: TimeInput = option("how it sees the time: trial / num_trials, the trial, or not at all", "fraction")
    reward_clip: Positive | None = option(
        "the last reward is seen clipped to [-clip, clip]; null: as it is. It changes no return", None
    )
    training_return: Literal["reward", "negative_regret"] = option(
        "what training maximises: the rewards, or minus the expected regret, which has less noise; evaluation: rewards",
        "reward",
    )
    episodes_per_job: Count = option("episodes under one perturbation; the job's return is their mean", 1)
    observation_normalization: ObservationNormalization = option(
        "statistics of the observations", default_factory=ObservationNormalization
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that no single field shows: (key, text)."""
        try:
            setting_of(self)
        except ConfigError as error:
            yield from error.problems

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield what has no effect: (key, text)."""
        if self.reward == "none":
            yield from unused(self, ("reward_clip",), "reward is none, so no reward is seen")


def setting_of(o: Options) -> Setting:
    """Return the problem that the options describe; ConfigError."""
    inputs = (o.reward, o.action, o.time)
    return setting(o.distribution, o.num_trials, o.meta, o.arms_seed, *inputs, o.family, o.reward_clip)


class Bandits:
    """The task; `info` are the numbers of `report.info`."""

    def __init__(self, options: Options, info: Mapping[str, Reduction]) -> None:
        self.options, self.setting = options, replace(setting_of(options), info=info)
        self._columns = (info_numbers(len(info)),) if info else ()
        if unknown := [key for key in info if key not in INFO_KEYS]:
            text = f"no info of bandits has {unknown[0]!r} (there are numbers: {', '.join(INFO_KEYS)})"
            raise ConfigError([("report.info", text + nearest(unknown[0], INFO_KEYS))])
        self.name = f"{options.distribution} bandits"
        self.spaces = Spaces(flat_observations(self.setting.inputs.width), Discrete(self.setting.family.arms))
        self.episodes_per_job = options.episodes_per_job

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> Any:
        """Return the policy's parameters as a vector, or its trajectories."""
        assert policy is not None
        if searched == "vectors":
            normalization = self.options.observation_normalization
            return PolicyProblem(self, policy, keys, normalization, unit, self._columns, "free")
        refuse_normalization(self.options.observation_normalization)
        if self.options.training_return != "reward":
            text = "is for evolution strategies: algorithms that learn from trajectories learn from 'reward'"
            raise ConfigError([("task.training_return", text)])
        return PolicyTrajectories(self, policy, self.setting.num_trials, compiled=self.setting, columns=self._columns)

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play every job's episodes; rows, and the sums of the observations of the jobs to observe."""
        jobs, episodes = batch.seeds.shape
        totals = np.zeros((jobs, episodes, 2 + len(self.setting.info)))  # of each episode, as Rollout.play has them
        rollout = Rollout(self, batch, poll)
        if hasattr(actor, "with_episodes"):
            totals[:] = rollout.play(actor.with_episodes(episodes), batch.seeds)
        else:
            for episode in range(episodes):
                for row in range(jobs):
                    actor.restart(row)
                totals[:, [episode]] = rollout.play(actor, batch.seeds[:, [episode]])
        rows = np.zeros(jobs, row_dtype((SIGN_RETURN, *self._columns)))
        means = totals.mean(axis=1)
        rows["return_"], rows["sign_return"] = means[:, :2].T
        if self.setting.info:
            rows[INFO] = means[:, 2:]
        rows["length"] = episodes * self.setting.num_trials
        none_failed = np.zeros(jobs, np.bool_)
        return Outcome(rows, {}, rollout.seconds, learned=rollout.sums.units(none_failed))

    def environment(self, render_mode: str | None = None) -> Any:
        """There is none to film or to play: UserError."""
        text = "bandits have no picture: leave the video out, or draw their regret: hpc-es bandit-report"
        raise UserError(f"{text}; to play, make the environment {ENVIRONMENT}")

    def close(self) -> None:
        """There is nothing to give back."""


class Rollout:
    """The episodes of a chunk."""

    def __init__(self, task: Bandits, batch: Batch, poll: Poll) -> None:
        self._setting, self._poll = task.setting, poll
        self._jobs = list(range(len(batch.seeds)))
        self._is_regret = batch.training and task.options.training_return == "negative_regret"
        self._is_observed = bool(batch.observe.any())
        self.sums = ObservationSums(batch, task.spaces.observations)
        self.seconds = {"environment": 0.0, "policy": 0.0, "policy_calls": 0.0}

    def play(self, actor: Actor, seeds: np.ndarray[Any, Any]) -> Float64:
        """Return an episode a seed, int64[jobs, episodes], all at once: float64[jobs, episodes, 2 + numbers].

        The numbers are the return, the sum of the rewards' signs, and those of `report.info`.
        """
        t0 = time.perf_counter()
        lockstep = Lockstep(self._setting, self._setting.of_seeds(seeds.ravel()))
        self.seconds["environment"] += time.perf_counter() - t0
        while not lockstep.is_over:
            t0 = time.perf_counter()
            self._observe(lockstep, seeds.shape[1])
            pulls = actor.act(lockstep.observations)
            t1 = time.perf_counter()
            lockstep.pull(pulls)
            self.seconds["policy"] += t1 - t0
            self.seconds["environment"] += time.perf_counter() - t1
            self._poll()
        self.seconds["policy_calls"] += self._setting.num_trials
        rewards = lockstep.rewards.astype(np.float64)
        returns = -lockstep.drawn.arms.regrets(lockstep.pulls) if self._is_regret else rewards
        sums = np.stack([returns.sum(axis=1), np.sign(rewards).sum(axis=1)], axis=1)
        if self._setting.info:
            sums = np.concatenate([sums, self._setting.numbers(lockstep.drawn.arms, lockstep.pulls)], axis=1)
        return sums.reshape(*seeds.shape, -1)

    def _observe(self, lockstep: Lockstep, episodes: int) -> None:
        if self._is_observed:
            for episode in range(episodes):
                self.sums.add(lockstep.observations[episode::episodes], self._jobs, self._jobs)


def build(options: Any, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS) -> Bandits:
    """Return the task of `task: {kind: bandits}`, the same in all repetitions."""
    return Bandits(options, info)
