"""The task `bandits`: meta-learning on bandits, a new one in each episode.

Wang et al. 2016, arXiv:1611.05763. The episodes of a chunk are played in lockstep, including the
episodes of one job if the policy supports that. The result of a job depends only on its parameters
and seeds: an episode is that of the Gymnasium environment `hpc_es/Bandit-v0` after
reset(seed=seed). Importing this module registers the environment, the class `Bandit`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt

from hpc_es.bandits.reference_agents import optimal_regret, optimal_reward
from hpc_es.bandits.setting import INFO_KEYS, BanditSetting, Lockstep, setting
from hpc_es.config.options import Count, Natural, Positive, option, options, unused
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.core.data import (
    INFO,
    SIGN_RETURN,
    Array,
    Discrete,
    Float32,
    Float64,
    Keywords,
    Outcome,
    Poll,
    Spaces,
    flat_observations,
    info_numbers,
    row_dtype,
)
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import ConfigError, UserError, failure_from_text, nearest
from hpc_es.core.keys import Keys
from hpc_es.core.policy import DIVERGED, Actor, Batch, Policy
from hpc_es.core.tabulated import RewardInput, TimeInput
from hpc_es.extend.episodes import (
    ObservationNormalization,
    ObservationSums,
    PolicyProblem,
    PolicyTrajectories,
    refuse_normalization,
)

__all__ = ["Bandits", "Options", "build", "optimal_regret", "optimal_reward"]

OFFERS = Offers(
    problems=("vectors", "trajectories"),
    policy=True,
    any_chunks=True,
    info=True,
    single_episodes={"episodes_per_job": 1},
)
ENVIRONMENT = "hpc_es/Bandit-v0"
if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, "hpc_es.bandits.task:Bandit")


@options
class Options:
    """`task:` with `kind: bandits`."""

    kind: Literal["bandits"] = option("name of the task", "bandits")
    distribution: str = option(
        "distribution of the arms: independent, uniform, easy, medium, hard, eleven, restless, k_armed, ... (see "
        "docs/guides/bandits.md)",
        "independent",
    )
    num_trials: Count = option("number of pulls per episode", 100)
    family: Keywords = option(
        "keywords of the distribution, such as {num_arms: 5}", default_factory=dict
    )
    meta: bool = option(
        "whether each episode has new arms; false: the same arms in all episodes", True
    )
    arms_seed: Natural = option("seed of the arms if meta is false", 0)
    reward: RewardInput = option(
        "form of the last reward in the observation; none: not observed", "value"
    )
    action: bool = option("whether the observation contains the last action, one-hot", True)
    time: TimeInput = option(
        "time in the observation: trial / num_trials, number of the trial, or not observed",
        "fraction",
    )
    reward_clip: Positive | None = option(
        "clipping of the observed reward to [-clip, clip]; null: no clipping. Returns are not clipped",
        None,
    )
    training_return: Literal["reward", "negative_regret"] = option(
        "objective of training: reward, or minus the expected regret, which has less noise; evaluations use the reward",
        "reward",
    )
    episodes_per_job: Count = option(
        "number of episodes per job; the return of a job is their mean", 1
    )
    observation_normalization: ObservationNormalization = option(
        "normalisation of the observations", default_factory=ObservationNormalization
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield mistakes that involve several options: (key, text)."""
        try:
            setting_of(self)
        except ConfigError as error:
            yield from error.problems

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield options without effect: (key, text)."""
        if self.reward == "none":
            yield from unused(self, ("reward_clip",), "reward is none, so no reward is observed")


def setting_of(options: Options) -> BanditSetting:
    """Return the bandit problem of these options; raises ConfigError for invalid ones."""
    inputs = (options.reward, options.action, options.time)
    return setting(
        options.distribution,
        options.num_trials,
        options.meta,
        options.arms_seed,
        *inputs,
        options.family,
        options.reward_clip,
    )


class Bandits:
    """The task; `info` is `report.info`, reductions of numbers by key."""

    def __init__(self, options: Options, info: Mapping[str, Reduction]) -> None:
        self.options, self.setting = options, replace(setting_of(options), info=info)
        self._columns = (info_numbers(len(info)),) if info else ()
        if unknown := [key for key in info if key not in INFO_KEYS]:
            text = (
                f"the infos of bandits have no {unknown[0]!r} (they have: {', '.join(INFO_KEYS)})"
            )
            raise ConfigError([("report.info", text + nearest(unknown[0], INFO_KEYS))])
        self.name = f"{options.distribution} bandits"
        self.spaces = Spaces(
            flat_observations(self.setting.inputs.width), Discrete(self.setting.family.arms)
        )
        self.episodes_per_job = options.episodes_per_job

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> PolicyProblem | PolicyTrajectories:
        """Return the problem of the policy's parameter vector or of its trajectories."""
        assert policy is not None
        if searched == "vectors":
            normalization = self.options.observation_normalization
            return PolicyProblem(self, policy, keys, normalization, unit, self._columns, "free")
        refuse_normalization(self.options.observation_normalization)
        if self.options.training_return != "reward":
            raise ConfigError(
                [
                    (
                        "task.training_return",
                        "is for evolution strategies: algorithms that learn "
                        "from trajectories learn from 'reward'",
                    )
                ]
            )
        return PolicyTrajectories(
            self, policy, self.setting.num_trials, compiled=self.setting, columns=self._columns
        )

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs."""
        jobs, episodes = batch.seeds.shape
        totals = np.zeros(
            (jobs, episodes, 2 + len(self.setting.info))
        )  # results of `BanditRollout.play`
        rollout = BanditRollout(self, batch, poll)
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
        failed = np.isnan(rows["return_"])
        text = f"the action of the policy is NaN; {DIVERGED}"
        failures = [failure_from_text(text, job) for job in np.flatnonzero(failed).tolist()]
        return Outcome(rows, {}, rollout.seconds, failures, rollout.sums.units(failed))

    def environment(self, render_mode: str | None = None) -> NoReturn:
        """Raise UserError: there is no environment to render."""
        raise UserError(
            "bandits cannot be rendered: leave the video out, or plot their regret with hpc-es "
            f"bandit-report; to play, create the environment {ENVIRONMENT}"
        )

    def close(self) -> None:
        """Do nothing: bandits hold no resources."""


class BanditRollout:
    """Plays the episodes of a chunk."""

    def __init__(self, task: Bandits, batch: Batch, poll: Poll) -> None:
        self._setting, self._poll = task.setting, poll
        self._jobs = list(range(len(batch.seeds)))
        self._is_regret = batch.training and task.options.training_return == "negative_regret"
        self._is_observed = bool(batch.observe.any())
        self.sums = ObservationSums(batch, task.spaces.observations)
        self.seconds = {"environment": 0.0, "policy": 0.0, "policy_calls": 0.0}

    def play(self, actor: Actor, seeds: npt.NDArray[np.int64]) -> Float64:
        """Play one episode per seed, int64[jobs, episodes], all at once.

        Return float64[jobs, episodes, 2 + numbers]: the return, the sum of the signs of the
        rewards, and the numbers of `report.info`.
        """
        episodes = seeds.shape[1]
        t0 = time.perf_counter()
        lockstep = Lockstep(self._setting, self._setting.episodes_of_seeds(seeds.ravel()))
        has_failed = np.zeros(seeds.size, np.bool_)
        self.seconds["environment"] += time.perf_counter() - t0
        while not lockstep.is_over:
            t0 = time.perf_counter()
            if self._is_observed:
                for episode in range(episodes):
                    self.sums.add(lockstep.observations[episode::episodes], self._jobs, self._jobs)
            pulls = actor.act(lockstep.observations)
            if pulls.dtype.kind == "f":  # some are NaN
                has_failed |= np.isnan(pulls)
                pulls = np.where(np.isnan(pulls), 0, pulls).astype(np.int64)
            t1 = time.perf_counter()
            lockstep.pull(pulls)
            self.seconds["policy"] += t1 - t0
            self.seconds["environment"] += time.perf_counter() - t1
            self._poll()
        self.seconds["policy_calls"] += self._setting.num_trials
        rewards = lockstep.rewards.astype(np.float64)
        returns = -lockstep.episodes.arms.regrets(lockstep.pulls) if self._is_regret else rewards
        sums = np.stack([returns.sum(axis=1), np.sign(rewards).sum(axis=1)], axis=1)
        sums[has_failed, 0] = np.nan
        if self._setting.info:
            sums = np.concatenate(
                [sums, self._setting.info_values(lockstep.episodes.arms, lockstep.pulls)], axis=1
            )
        return sums.reshape(*seeds.shape, -1)


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    return replace(OFFERS, observation_limit=options.observation_normalization.limit)


def build(
    options: Options, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS
) -> Bandits:
    """Return the task, which is the same in all repetitions."""
    return Bandits(options, info)


class Bandit(gymnasium.Env[Array, int]):  # type: ignore[misc]
    """`gymnasium.make("hpc_es/Bandit-v0", distribution="independent", num_trials=100)`:
    `num_trials` pulls an episode.

    Observations are float32[width], see `hpc_es.extend.LastStepInputs`; actions are
    Discrete(arms). Infos contain `optimal_arm` (from 0) and `expected_reward` (float64[arms]) of
    the next trial; the info of a step also contains `regret`, the expected regret of its pull. All
    random numbers come from the seed of the last `reset` with a seed. Further keywords are those of
    the distribution, such as num_arms=5 for "k_armed".

    Raises ConfigError with the name of an invalid keyword.
    """

    metadata: ClassVar[dict[str, object]] = {"render_modes": []}

    def __init__(
        self,
        distribution: str = "independent",
        num_trials: int = 100,
        meta: bool = True,
        arms_seed: int = 0,
        reward: RewardInput = "value",
        action: bool = True,
        time: TimeInput = "fraction",
        reward_clip: float | None = None,
        render_mode: str | None = None,
        **family_options: float,
    ) -> None:
        inputs = (reward, action, time)
        self.setting = setting(
            distribution, num_trials, meta, arms_seed, *inputs, family_options, reward_clip
        )
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (self.setting.inputs.width,), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(self.setting.family.arms)
        self._play: Lockstep | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Float32, dict[str, object]]:
        """Return the first observation, float32[width], and info; `options` are not used."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._play = Lockstep(self.setting, self.setting.episodes_of_seeds([episode_seed]))
        return self._play.observations[0], self._info(0)

    def step(self, action: int) -> tuple[Float32, float, bool, bool, dict[str, object]]:
        """Pull an arm; return the next observation, float32[width], and the reward.

        Raises RuntimeError before the first reset and after the last trial, ValueError for another
        arm.
        """
        play = self._play
        if play is None or play.is_over:
            raise RuntimeError("the episode is over, or never began: call reset first")
        if not self.action_space.contains(action):
            raise ValueError(
                f"expected an arm from 0 to {self.setting.family.arms - 1}, found {action!r}"
            )
        trial = play.trial
        reward = play.pull(np.array([action]))[0]
        info = self._info(min(trial + 1, self.setting.num_trials - 1))
        info["regret"] = float(play.episodes.arms.regrets(play.pulls)[0, trial])
        return play.observations[0], float(reward), play.is_over, False, info

    def _info(self, trial: int) -> dict[str, object]:
        assert self._play
        arms = self._play.episodes.arms
        index = trial if self.setting.family.changes else 0
        return {
            "optimal_arm": int(arms.optimal()[0, index]),
            "expected_reward": arms.expected()[0, index],
        }
