"""How good learned agents are at bandits: cumulative expected regret on held-out episodes, beside that of references.

The expected regret of a pull is the expected reward of the best arm minus that of the arm pulled. All agents play the
same episodes: what their arms pay in a trial does not depend on what was pulled before.


The picture of `hpc-es bandit-report`: cumulative expected regret over trials, a panel for each distribution."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpc_es.algorithms.actor_critic.episodes import Sampled
from hpc_es.bandits import task as bandits
from hpc_es.bandits.optimal import optimal_regret
from hpc_es.bandits.reference_agents import play, references
from hpc_es.bandits.setting import Draws, Lockstep, Setting
from hpc_es.config.resolved import resolved
from hpc_es.core.data import Float64
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import Actor, Policy
from hpc_es.report.curves import shared_config
from hpc_es.report.plot import DASHES, PALETTE, STYLE, SUFFIXES, UNDATED
from hpc_es.report.saved_policy import ROWS, StoredPolicy
from hpc_es.storage.files import written

BLOCK = 2  # of evaluation's keys: training's own evaluations have 0, those of `hpc-es eval` 1


@dataclass(frozen=True)
class Score:
    """An agent's episodes, or the mean over several trained alike."""

    agent: str
    learned: bool
    curve: Float64  # float64[trials], cumulative expected regret after each trial
    error: Float64  # its standard error: over episodes, or over runs if there are several
    suboptimal_pulls: float  # an episode
    reward: float  # an episode, as it was paid
    runs: int = 1

    @property
    def regret(self) -> tuple[float, float]:
        """Of a whole episode, and its standard error."""
        return float(self.curve[-1]), float(self.error[-1])


@dataclass(frozen=True)
class RegretReport:
    """Of one test distribution."""

    distribution: str
    trials: int
    episodes: int
    oracle_reward: float  # expected reward of an episode that always pulls the best arm, of these episodes
    scores: tuple[Score, ...]  # those learned come first
    exact: float | None  # the least expected regret there can be, where it is known


def report(
    sources: Sequence[StoredPolicy],
    distribution: str | None = None,
    trials: int | None = None,
    episodes: int = 2000,
    seed: int = 0,
    actions: str | None = None,
) -> RegretReport:
    """Play; None is the distribution, the trials, the choice of actions of training. UserError for what does not fit.

    `actions`: "sampled" from the softmax, or the "greedy" one.
    """
    first = tested(sources[0], distribution, trials)
    drawn = first.of_seeds([Keys(seed).seed31(Purpose.EVALUATION, index=i, block=BLOCK) for i in range(episodes)])
    groups: dict[str, list[Score]] = {}
    for source in sources:
        setting = tested(source, distribution, trials)
        if (setting.family.distribution, setting.num_trials) != (first.family.distribution, first.num_trials):
            text = f"{source.path} was trained on {described(setting)}, {sources[0].path} on {described(first)}"
            raise UserError(f"{text}: give a test distribution and a number of trials for both")
        played = score(str(source.config.name), True, learned(source, setting, drawn, seed, actions))
        groups.setdefault(configuration(source), []).append(played)
    scores = _told_apart([average(members) for members in groups.values()])
    for number, (name, agent) in enumerate(references(first).items()):
        rng = Keys(seed).generator(Purpose.BANDITS, index=number, block=BLOCK)
        scores.append(score(name, False, play(first, drawn, agent, rng)))
    best = drawn.arms.best()
    oracle = float(np.broadcast_to(best, drawn.uniforms.shape).sum(axis=1).mean())
    options = options_of(sources[0], distribution)
    return RegretReport(
        first.family.distribution, first.num_trials, episodes, oracle, tuple(scores), exact(first, options.family)
    )


def _told_apart(scores: Sequence[Score]) -> list[Score]:
    """Agents of one name are numbered from the second on."""
    names = [each.agent for each in scores]
    counts = [names[:index].count(name) + 1 for index, name in enumerate(names)]
    return [
        dataclasses.replace(each, agent=each.agent + (f" #{count}" if count > 1 else ""))
        for each, count in zip(scores, counts, strict=True)
    ]


def exact(setting: Setting, family: Any) -> float | None:
    """Return the Bayes-optimal regret, where it is known and soon computed."""
    if "bayes_optimal" not in references(setting):
        return None
    return optimal_regret(setting.family.distribution, setting.num_trials, **family)


def described(setting: Setting) -> str:
    """For people."""
    return f"{setting.family.distribution} bandits of {setting.num_trials} trials"


def options_of(source: StoredPolicy, distribution: str | None) -> bandits.Options:
    """Return the task it was trained on, with another distribution; UserError if it has other tasks."""
    options = source.config.task
    if not isinstance(options, bandits.Options):
        text = f"{source.path}: was trained on the task {options.kind!r}, expected 'bandits'"
        raise UserError(text)
    if distribution is None or distribution == options.distribution:
        return options
    return dataclasses.replace(options, distribution=distribution, family={})


def tested(source: StoredPolicy, distribution: str | None, trials: int | None) -> Setting:
    """Return the setting to test it in; UserError if its policy does not fit."""
    options = options_of(source, distribution)
    if trials is not None:
        options = dataclasses.replace(options, num_trials=trials)
    trained = bandits.setting_of(source.config.task)
    try:
        setting = bandits.setting_of(options)
    except ConfigError as error:
        raise UserError(f"there is no such test distribution: {error}") from error
    if setting.family.arms != trained.family.arms:
        text = f"{source.path}: was trained with {trained.family.arms} arms, {setting.family.distribution} bandits have"
        raise UserError(f"{text} {setting.family.arms}: choose another test distribution")
    return setting


def configuration(source: StoredPolicy) -> str:
    """Return what runs that are one line have in common."""
    return json.dumps(shared_config(resolved(source.config)))


def learned(source: StoredPolicy, setting: Setting, drawn: Draws, seed: int, actions: str | None) -> Lockstep:
    """Return the episodes of `drawn` as a learned policy plays them."""
    task = bandits.build(source.config.task)
    policy = source.policy(task.spaces)
    lockstep = Lockstep(setting, drawn)
    sampled = (actions or getattr(source.config.algorithm, "evaluation_actions", "greedy")) == "sampled"
    parts = [range(start, min(start + ROWS, len(drawn.uniforms))) for start in range(0, len(drawn.uniforms), ROWS)]
    actors = [_actor(source, policy, part, seed, sampled) for part in parts]
    while not lockstep.is_over:
        seen = lockstep.observations
        pulls = [actor.act(seen[part.start : part.stop]) for actor, part in zip(actors, parts, strict=True)]
        lockstep.pull(np.concatenate(pulls))
    return lockstep


def _actor(source: StoredPolicy, policy: Policy, episodes: range, seed: int, sampled: bool) -> Actor:
    if not sampled:
        return source.bind(policy, len(episodes))
    keys = Keys(seed)
    generators = [keys.generator(Purpose.POLICY_SAMPLING, index=i, block=BLOCK) for i in episodes]
    return Sampled(policy, source.theta, generators)


def score(agent: str, is_learned: bool, played: Lockstep) -> Score:
    """Return the numbers of an agent's episodes."""
    arms = played.drawn.arms
    cumulative = arms.regrets(played.pulls).cumsum(axis=1)
    episodes = len(cumulative)
    spread = cumulative.std(axis=0, ddof=1) if episodes > 1 else np.full(cumulative.shape[1], np.nan)
    wrong = played.pulls != arms.optimal()
    rewards = played.rewards.astype(np.float64)
    return Score(
        agent,
        is_learned,
        cumulative.mean(axis=0),
        spread / np.sqrt(episodes),
        float(wrong.sum(axis=1).mean()),
        float(rewards.sum(axis=1).mean()),
    )


def average(scores: Sequence[Score]) -> Score:
    """Return the mean of runs of one configuration; its error is that over the runs."""
    if len(scores) == 1:
        return scores[0]
    curves = np.stack([each.curve for each in scores])
    return Score(
        scores[0].agent,
        scores[0].learned,
        curves.mean(axis=0),
        curves.std(axis=0, ddof=1) / np.sqrt(len(scores)),
        float(np.mean([each.suboptimal_pulls for each in scores])),
        float(np.mean([each.reward for each in scores])),
        len(scores),
    )


def content(found: RegretReport) -> dict[str, Any]:
    """As JSON."""
    return {
        "test_distribution": found.distribution,
        "num_trials": found.trials,
        "episodes": found.episodes,
        "oracle_reward": found.oracle_reward,
        "bayes_optimal_regret": found.exact,
        "agents": [
            {
                "agent": each.agent,
                "learned": each.learned,
                "runs": each.runs,
                "regret": each.regret[0],
                "regret_error": None if np.isnan(each.regret[1]) else each.regret[1],
                "suboptimal_pulls": each.suboptimal_pulls,
                "reward": each.reward,
                "cumulative_regret": each.curve.tolist(),
            }
            for each in found.scores
        ],
    }


def regret_text(found: RegretReport) -> str:
    """Return a table for people."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: RegretReport) -> Iterator[str]:
    yield f"{found.distribution} bandits, {found.trials} trials, {found.episodes} held-out episodes"
    yield f"oracle reward {found.oracle_reward:.3f}"
    if found.exact is not None:
        yield f"least possible regret {found.exact:.5f} (exact)"
    names = [each.agent + (f" ({each.runs} runs)" if each.runs > 1 else "") for each in found.scores]
    width = max(map(len, names))
    yield f"{'agent':{width}}  {'regret':>15}  {'sub-optimal pulls':>17}  {'reward':>8}"
    for name, each in zip(names, found.scores, strict=True):
        regret, error = each.regret
        yield f"{name:{width}}  {regret:7.3f} ± {error:5.3f}  {each.suboptimal_pulls:17.2f}  {each.reward:8.2f}"


def matrix(reports: Sequence[RegretReport]) -> str:
    """Regrets of the learned agents, one line for each agent, one column for each test distribution."""
    rows = [[each.agent for each in reports[0].scores if each.learned]]
    rows += [[f"{each.regret[0]:.3f}" for each in found.scores if each.learned] for found in reports]
    titles = ["regret of", *(found.distribution for found in reports)]
    widths = [max(map(len, [title, *column])) for title, column in zip(titles, rows, strict=True)]
    lines = [titles, *map(list, zip(*rows, strict=True))]
    cells = ([f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "".join("  ".join(line) + "\n" for line in cells)


# Their colours, in this order, are the same in all pictures.
REFERENCES = (
    *("bayes_optimal", "thompson", "ucb", "posterior_greedy", "epsilon_greedy", "ucb1", "random"),
    "rescorla_wagner",
)
HEADROOM = 1.3  # above the last but worst of the references: random arms may leave the picture


def check(output: Path) -> None:
    """UserError unless the suffix is one that can be drawn."""
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")


def plot(reports: Sequence[RegretReport], output: Path) -> None:
    """Draw them into a PNG, PDF or SVG; the file is replaced as a whole or not at all."""
    check(output)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            figure(reports).savefig(temporary, format=kind, metadata=UNDATED[kind])


def figure(reports: Sequence[RegretReport]) -> Figure:
    """Learned agents are bold and shaded by their standard error, references thin and dashed."""
    result = Figure(figsize=(max(2.6 * len(reports), 6.0), 3.6), dpi=150, layout="constrained")
    axes = result.subplots(1, len(reports), squeeze=False)[0]
    scores = [each for found in reports for each in found.scores]
    learned = list(dict.fromkeys(each.agent for each in scores if each.learned))
    names = learned + list(dict.fromkeys(each.agent for each in scores if not each.learned))
    for ax, found in zip(axes, reports, strict=True):
        for each in found.scores:
            _draw(ax, each, learned.index(each.agent) if each.learned else REFERENCES.index(each.agent))
        ax.set_title(f"{found.distribution} bandits")
        ax.set_xlabel("trials")
        ax.set_xlim(0, found.trials)
        ax.set_ylim(0, _top(found))
    axes[0].set_ylabel("cumulative expected regret")
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    result.legend(handles=[handles[name] for name in names], loc="outside right center", fontsize=8)
    return result


def _draw(ax: Axes, each: Score, index: int) -> None:
    color = PALETTE[index % len(PALETTE)]
    dash = DASHES[0 if each.learned else 1 + index // len(PALETTE)]
    trials = np.arange(len(each.curve) + 1)
    curve, error = (np.append(0.0, part) for part in (each.curve, each.error))
    ax.plot(trials, curve, dash, color=color, lw=2.2 if each.learned else 1.0, label=each.agent)
    if each.learned:
        ax.fill_between(trials, curve - error, curve + error, color=color, alpha=0.2, lw=0)


def _top(found: RegretReport) -> float:
    ends = sorted(float(each.curve[-1]) for each in found.scores if each.learned or each.agent != "random")
    return max(HEADROOM * ends[-1], 1e-3)
