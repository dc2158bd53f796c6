"""`hpc-es bandit-report`: cumulative expected regret on held-out bandits.

It is that of learned agents and reference agents. The expected regret of a pull is the expected
reward of the best arm minus that of the pulled arm. All agents play the same episodes: the reward
of an arm in a trial does not depend on earlier pulls. The report is a text, JSON or a figure with
one panel per distribution.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpc_es.bandits import task as bandits
from hpc_es.bandits.extension import BanditPurpose
from hpc_es.bandits.reference_agents import optimal_regret, play, references
from hpc_es.bandits.setting import BanditEpisodes, BanditSetting, Lockstep
from hpc_es.config.resolved import resolved
from hpc_es.core.data import Float64, JsonObject, Keywords
from hpc_es.core.errors import ConfigError, UserError, visible
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Policy
from hpc_es.core.text_table import aligned
from hpc_es.extend.reports import DASHES, PALETTE, STYLE, UNDATED, check_picture, shared_config
from hpc_es.extend.runs import ROWS, StoredPolicy, written
from hpc_es.policies.sampling import SamplingActor

BLOCK = 2  # block of the random numbers; evaluations in training use 0, `hpc-es eval` uses 1


@dataclass(frozen=True)
class AgentScore:
    """Results of an agent, or the mean over several runs of one config."""

    agent: str
    learned: bool
    curve: Float64  # float64[trials], cumulative expected regret after score trial
    # float64[trials], standard error over episodes, or over runs if there are several
    error: Float64
    suboptimal_pulls: float  # per episode
    reward: float  # per episode
    runs: int = 1

    @property
    def regret(self) -> tuple[float, float]:
        """Cumulative regret of an episode, and its standard error."""
        return float(self.curve[-1]), float(self.error[-1])


@dataclass(frozen=True)
class RegretReport:
    """Scores of all agents on one test distribution."""

    distribution: str
    trials: int
    episodes: int
    oracle_reward: float  # mean expected reward of these episodes if the best arm is always pulled
    scores: tuple[AgentScore, ...]  # learned agents first
    exact: float | None  # expected regret of the Bayes-optimal agent, if it is known


def regret_report(
    sources: Sequence[StoredPolicy],
    distribution: str | None = None,
    trials: int | None = None,
    *,
    episodes: int = 2000,
    seed: int = 0,
    actions: str | None = None,
) -> RegretReport:
    """Evaluate agents.

    Distribution, number of trials and choice of actions default to those of training. `actions` are
    "sampled" from the softmax or "greedy".

    Raises:
        UserError: the sources do not fit together.
    """
    first = evaluation_setting(sources[0], distribution, trials)
    seeds = [Keys(seed).seed31(Purpose.EVALUATION, index=i, block=BLOCK) for i in range(episodes)]
    held_out = first.episodes_of_seeds(seeds)
    groups: dict[str, list[AgentScore]] = {}
    for source in sources:
        setting = evaluation_setting(source, distribution, trials)
        if (setting.family.distribution, setting.num_trials) != (
            first.family.distribution,
            first.num_trials,
        ):
            raise UserError(
                f"{source.path} was trained on {description(setting)}, {sources[0].path} on "
                f"{description(first)}: give a test distribution "
                "and a number of trials for both"
            )
        played = agent_score(
            str(source.config.name), True, play_learned(source, setting, held_out, seed, actions)
        )
        # equal for runs that are averaged
        config = json.dumps(shared_config(resolved(source.config)))
        groups.setdefault(config, []).append(played)
    scores = _with_distinct_names([average(members) for members in groups.values()])
    for number, (name, agent) in enumerate(references(first).items()):
        rng = Keys(seed).generator(BanditPurpose.BANDITS, index=number, block=BLOCK)
        scores.append(agent_score(name, False, play(first, held_out, agent, rng)))
    best = held_out.arms.best()
    oracle = float(np.broadcast_to(best, held_out.uniforms.shape).sum(axis=1).mean())
    exact = bayes_optimal_regret(first, options_of(sources[0], distribution).family)
    return RegretReport(
        first.family.distribution, first.num_trials, episodes, oracle, tuple(scores), exact
    )


def _with_distinct_names(scores: Sequence[AgentScore]) -> list[AgentScore]:
    """Return the scores with numbers added to repeated names of agents."""
    names = [score.agent for score in scores]
    counts = [names[:index].count(name) + 1 for index, name in enumerate(names)]
    return [
        dataclasses.replace(score, agent=score.agent + (f" #{count}" if count > 1 else ""))
        for score, count in zip(scores, counts, strict=True)
    ]


def bayes_optimal_regret(setting: BanditSetting, family: Keywords) -> float | None:
    """Return the Bayes-optimal agent's expected regret, if it is known and quickly computed."""
    if "bayes_optimal" not in references(setting):
        return None
    return optimal_regret(setting.family.distribution, setting.num_trials, **family)


def description(setting: BanditSetting) -> str:
    """Return a description of a setting for messages."""
    return f"{setting.family.distribution} bandits of {setting.num_trials} trials"


def options_of(source: StoredPolicy, distribution: str | None) -> bandits.Options:
    """Return the bandit task of a run with this test distribution.

    Raises:
        UserError: its task is of another kind.
    """
    options = source.config.task
    if not isinstance(options, bandits.Options):
        raise UserError(
            f"{source.path}: was trained on the task {options.kind!r}, expected 'bandits'"
        )
    if distribution is None or distribution == options.distribution:
        return options
    return dataclasses.replace(options, distribution=distribution, family={})


def evaluation_setting(
    source: StoredPolicy, distribution: str | None, trials: int | None
) -> BanditSetting:
    """Return the setting in which a run is evaluated.

    Raises:
        UserError: its policy does not fit.
    """
    options = options_of(source, distribution)
    if trials is not None:
        options = dataclasses.replace(options, num_trials=trials)
    trained = bandits.setting_of(source.config.task)
    try:
        setting = bandits.setting_of(options)
    except ConfigError as error:
        raise UserError(f"the test distribution is not valid: {error}") from error
    if setting.family.arms != trained.family.arms:
        raise UserError(
            f"{source.path}: was trained with {trained.family.arms} arms, "
            f"{setting.family.distribution} bandits have {setting.family.arms}: choose another "
            "test distribution"
        )
    return setting


def play_learned(
    source: StoredPolicy,
    setting: BanditSetting,
    episodes: BanditEpisodes,
    seed: int,
    actions: str | None,
) -> Lockstep:
    """Play these episodes with a learned policy."""
    task = bandits.build(source.config.task)
    policy = source.policy(task.spaces)
    lockstep = Lockstep(setting, episodes)
    sampled = (
        source.config.setup.needs.samples_evaluations if actions is None else actions == "sampled"
    )
    parts = [
        range(start, min(start + ROWS, len(episodes.uniforms)))
        for start in range(0, len(episodes.uniforms), ROWS)
    ]
    actors = [_actor(source, policy, part, seed, sampled) for part in parts]
    while not lockstep.is_over:
        observations = lockstep.observations
        pulls = [
            actor.act(observations[part.start : part.stop])
            for actor, part in zip(actors, parts, strict=True)
        ]
        lockstep.pull(np.concatenate(pulls))
    return lockstep


def _actor(
    source: StoredPolicy, policy: Policy, episodes: range, seed: int, sampled: bool
) -> Actor:
    if not sampled:
        return source.bind(policy, len(episodes))
    keys = Keys(seed)
    generators = [keys.generator(Purpose.POLICY_SAMPLING, index=i, block=BLOCK) for i in episodes]
    return SamplingActor(policy, source.theta, generators)


def agent_score(agent: str, is_learned: bool, played: Lockstep) -> AgentScore:
    """Return the score of an agent from the episodes it has played."""
    arms = played.episodes.arms
    cumulative = arms.regrets(played.pulls).cumsum(axis=1)
    episodes = len(cumulative)
    spread = (
        cumulative.std(axis=0, ddof=1) if episodes > 1 else np.full(cumulative.shape[1], np.nan)
    )
    wrong = played.pulls != arms.optimal()
    rewards = played.rewards.astype(np.float64)
    return AgentScore(
        visible(agent),
        is_learned,
        cumulative.mean(axis=0),
        spread / np.sqrt(episodes),
        float(wrong.sum(axis=1).mean()),
        float(rewards.sum(axis=1).mean()),
    )


def average(scores: Sequence[AgentScore]) -> AgentScore:
    """Return the mean over runs of one config; the error is the standard error over runs."""
    if len(scores) == 1:
        return scores[0]
    curves = np.stack([score.curve for score in scores])
    return AgentScore(
        scores[0].agent,
        scores[0].learned,
        curves.mean(axis=0),
        curves.std(axis=0, ddof=1) / np.sqrt(len(scores)),
        float(np.mean([score.suboptimal_pulls for score in scores])),
        float(np.mean([score.reward for score in scores])),
        len(scores),
    )


def as_json(report: RegretReport) -> JsonObject:
    """Return the report as plain data for JSON."""
    return {
        "test_distribution": report.distribution,
        "num_trials": report.trials,
        "episodes": report.episodes,
        "oracle_reward": report.oracle_reward,
        "bayes_optimal_regret": report.exact,
        "agents": [
            {
                "agent": score.agent,
                "learned": score.learned,
                "runs": score.runs,
                "regret": score.regret[0],
                "regret_error": None if np.isnan(score.regret[1]) else score.regret[1],
                "suboptimal_pulls": score.suboptimal_pulls,
                "reward": score.reward,
                "cumulative_regret": score.curve.tolist(),
            }
            for score in report.scores
        ],
    }


def regret_text(report: RegretReport) -> str:
    """Return the report as a text table."""
    lines = [
        f"{report.distribution} bandits, {report.trials} trials, {report.episodes} held-out episodes",
        f"oracle reward {report.oracle_reward:.3f}",
    ]
    if report.exact is not None:
        lines.append(f"least possible regret {report.exact:.5f} (exact)")
    rows = [["agent", "regret", "sub-optimal pulls", "reward"]]
    for score in report.scores:
        name = score.agent + (f" ({score.runs} runs)" if score.runs > 1 else "")
        regret = f"{score.regret[0]:.3f} ± {score.regret[1]:.3f}"
        rows.append([name, regret, f"{score.suboptimal_pulls:.2f}", f"{score.reward:.2f}"])
    return "\n".join([*lines, *aligned(rows, right=(1, 2, 3))]) + "\n"


def matrix(reports: Sequence[RegretReport]) -> str:
    """Return a text table of the regrets of learned agents.

    It has one row per agent, one column per distribution.
    """
    rows = [[score.agent for score in reports[0].scores if score.learned]]
    rows += [
        [f"{score.regret[0]:.3f}" for score in report.scores if score.learned] for report in reports
    ]
    titles = ["regret of", *(report.distribution for report in reports)]
    lines = aligned([titles, *zip(*rows, strict=True)], right=range(len(titles)))
    return "".join(f"{line}\n" for line in lines)


# Reference agents in the order of their colours, which are the same in all figures.
REFERENCES = (
    "bayes_optimal",
    "thompson",
    "ucb",
    "posterior_greedy",
    "epsilon_greedy",
    "ucb1",
    "random",
    "rescorla_wagner",
)
# upper limit divided by the highest regret except that of random pulls, which may leave the figure
HEADROOM = 1.3


def plot(reports: Sequence[RegretReport], output: Path) -> None:
    """Write the figure as PNG, PDF or SVG; the file is replaced atomically."""
    check_picture(output)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(reports).savefig(temporary, format=kind, metadata=UNDATED[kind])


def figure(reports: Sequence[RegretReport]) -> Figure:
    """Return the figure: learned agents bold with their standard error.

    Reference agents are thin and dashed.
    """
    result = Figure(figsize=(max(2.6 * len(reports), 6.0), 3.6), dpi=150, layout="constrained")
    axes = result.subplots(1, len(reports), squeeze=False)[0]
    scores = [score for report in reports for score in report.scores]
    learned = list(dict.fromkeys(score.agent for score in scores if score.learned))
    names = learned + list(dict.fromkeys(score.agent for score in scores if not score.learned))
    for ax, report in zip(axes, reports, strict=True):
        for score in report.scores:
            _draw(
                ax,
                score,
                learned.index(score.agent) if score.learned else REFERENCES.index(score.agent),
            )
        ax.set_title(f"{report.distribution} bandits")
        ax.set_xlabel("trials")
        ax.set_xlim(0, report.trials)
        ax.set_ylim(0, _top(report))
    axes[0].set_ylabel("cumulative expected regret")
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    result.legend(handles=[handles[name] for name in names], loc="outside right center", fontsize=8)
    return result


def _draw(ax: Axes, score: AgentScore, index: int) -> None:
    color = PALETTE[index % len(PALETTE)]
    dash = DASHES[0 if score.learned else 1 + index // len(PALETTE)]
    trials = np.arange(len(score.curve) + 1)
    curve, error = (np.append(0.0, part) for part in (score.curve, score.error))
    ax.plot(trials, curve, dash, color=color, lw=2.2 if score.learned else 1.0, label=score.agent)
    if score.learned:
        ax.fill_between(trials, curve - error, curve + error, color=color, alpha=0.2, lw=0)


def _top(report: RegretReport) -> float:
    ends = sorted(
        float(score.curve[-1])
        for score in report.scores
        if score.learned or score.agent != "random"
    )
    return max(HEADROOM * ends[-1], 1e-3)
