"""Configs drawn at random, each of a second or less on one rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.helpers.stepping import KINDS

Values = dict[str, Any]
TIMEOUT_SECONDS = 3.0  # of an objective that hangs


@dataclass(frozen=True)
class Setting:
    """A config, and its properties that events depend on."""

    family: str
    values: Values
    # what the run says of each kind of trouble it can have
    troubled: Mapping[str, str] = field(default_factory=dict)
    when_hanging: tuple[str, ...] = ()  # overrides under which a hang ends
    reproducible: bool = True
    most_ranks: int = 4

    @property
    def groups(self) -> int:
        """Number of ranks that the run needs."""
        return int(self.values.get("repetition_groups", 1))

    @property
    def is_timed(self) -> bool:
        """Whether a hanging evaluation fails."""
        return "timeout_seconds" in self.values["task"]

    @property
    def places(self) -> list[str]:
        """The run directories below the output."""
        count = self.values.get("repetitions", 1)
        return [f"repetition_{number:04d}" for number in range(count)] if count > 1 else [""]


def setting(dice: random.Random, delayed: bool = False) -> Setting:
    """A random setting, with `algorithm.delay` if required."""
    weights = [weight for _, weight in FAMILIES]
    drawn = dice.choices([family for family, _ in FAMILIES], weights)[0](dice)
    while delayed and not drawn.values["algorithm"].get("delay"):
        drawn = dice.choices([family for family, _ in FAMILIES], weights)[0](dice)
    generations = drawn.values["stop"]["generations"]
    common: Values = {
        "name": "campaign",
        "seed": dice.randrange(1000),
        "mpi": {
            "chunk_size": dice.choice(["auto", 1, 3, 5]),
            "schedule": dice.choice(["on_demand", "static"]),
        },
        "evaluation": {"interval": dice.choice([0, 1, 5]), "episodes": 3},
        "checkpoint": {
            "interval": dice.randint(1, 5),
            "interval_seconds": 0,
            "keep_last": dice.randint(1, 3),
        },
        "report": {"plot_interval_seconds": 0, "tensorboard": dice.random() < 0.2},
    }
    if dice.random() < 0.15 and drawn.reproducible:
        common |= {"repetitions": 3, "repetition_groups": dice.choice([1, 2])}
        common["stop"] = {"generations": generations // 3}
    common["checkpoint"]["full_interval"] = dice.choice([0, 0, 3, 10])
    common["mpi"]["update"] = dice.choice(["gathered", "gathered", "replicated"])
    if drawn.values["algorithm"].get("delay"):
        common["mpi"] |= {"schedule": "on_demand", "update": "gathered"}
    return replace(drawn, values=drawn.values | common)


def _search(dice: random.Random, kind: str, values: Values) -> Values:
    """A strategy on vectors, on the task of `values`."""
    options: Values = {"kind": kind}
    if kind != "ars":
        options["population_size"] = dice.choice([8, 12, 16])
    if kind in ("es", "ars", "pgpe") and dice.random() < 0.5:
        options["delay"] = dice.choice([1, 2])
    if kind in RESTARTING and dice.random() < 0.3:
        options |= {
            "restarts": dice.choice(["ipop", "bipop"]),
            "stops": {"max_generations": 15},
            "population_size": 6,
        }
    noise = {"kind": "table", "table_size": 20_000} if dice.random() < 0.5 else {"kind": "counter"}
    return {
        **values,
        "algorithm": options,
        "noise": noise,
        "stop": {"generations": dice.randint(40, 80)},
    }


RESTARTING = ("cma_es", "sep_cma_es", "snes", "xnes")


def function(dice: random.Random) -> Setting:
    """An objective; a third of them fail at some vectors, whose evaluations are dropped."""
    fails = dice.random() < 0.4
    name = dice.choice(["fragile", "unruly"]) if fails else dice.choice(["cost", "cost", "pooled"])
    task: Values = {
        "kind": "function",
        "function": f"tests.campaign.trouble:{name}",
        "dimension": dice.choice([3, 10, 40]),
        "journal": dice.choice(["auto", True]),
        "bounds": {"low": -4, "high": 4} if dice.random() < 0.5 else {},
    }
    kind = dice.choice(KINDS)
    if kind == "novelty":
        task["vector_behaviour"] = True
    if kind in RESTARTING:
        task |= {"bounds": {"low": -4, "high": 4}, "initial": "random"}
    if fails:
        family = "function, failing" if name == "fragile" else "function, unruly"
        return Setting(family, _search(dice, kind, {"task": task}))
    task |= {"on_failed_evaluation": "abort", "timeout_seconds": TIMEOUT_SECONDS}
    said = {
        "nan": "the value is nan",
        "raise": "the simulator diverged",
        "hang": "longer than task.timeout_seconds",
    }
    family = "function, with a pool" if name == "pooled" else "function"
    return Setting(family, _search(dice, kind, {"task": task}), said)


def _policy(dice: random.Random) -> Values:
    kind = "lstm" if dice.random() < 0.25 else "mlp"
    return {"kind": kind, "hidden_dims": [dice.choice([4, 8])]}


def _episodes(dice: random.Random, env_id: str) -> tuple[str, Values]:
    kind = dice.choice(KINDS)
    task: Values = {
        "env_id": env_id,
        "max_episode_steps": dice.choice([40, 100]),
        "observation_normalization": {"enabled": True, "probability": 0.5}
        if dice.random() < 0.5
        else {},
    }
    if kind == "novelty":
        task["behaviour"] = {"final_observation": True}
    return kind, {
        "task": task,
        "policy": {"kind": "mlp", "hidden_dims": []} if kind == "ars" else _policy(dice),
    }


def classic(dice: random.Random) -> Setting:
    """CartPole or Pendulum without wrappers."""
    env_id = dice.choice(["CartPole-v1", "Pendulum-v1"])
    return Setting(env_id, _search(dice, *_episodes(dice, env_id)))


def wrapped(dice: random.Random) -> Setting:
    """The same with episodes that may hang and the like."""
    env_id = dice.choice(["CartPole-v1", "Pendulum-v1"])
    kind, values = _episodes(dice, env_id)
    values["task"] |= {"wrappers": ["tests.campaign.trouble:Trouble"], "on_failed_episode": "abort"}
    said = {
        "nan": "the return is nan",
        "raise": "the simulator diverged",
        "hang": "longer than task.episode_timeout",
    }
    return Setting(
        f"{env_id}, wrapped",
        _search(dice, kind, values),
        said,
        (f"task.episode_timeout_seconds={TIMEOUT_SECONDS}",),
    )


def simulated(dice: random.Random) -> Setting:
    """The same with a daemon process for each environment, some of which do not close."""
    env_id, stays = dice.choice(["CartPole-v1", "Pendulum-v1"]), dice.random() < 0.5
    kind, values = _episodes(dice, env_id)
    values["task"]["wrappers"] = [{"tests.campaign.trouble:Simulator": {"stays": stays}}]
    return Setting(
        f"{env_id}, {'which stays' if stays else 'simulated'}", _search(dice, kind, values)
    )


def failing(dice: random.Random) -> Setting:
    """Episodes of an environment in which one of seven always fails, and is dropped."""
    kind, values = _episodes(dice, "tests.helpers.trouble:Rough-v0")
    values["task"]["env_kwargs"] = {"fault": dice.choice(["nan", "raise"]), "every": 7}
    return Setting("failing episodes", _search(dice, kind, values))


def bandit(dice: random.Random) -> Setting:
    """Bandits by evolution strategies."""
    task = {"kind": "bandits", "num_trials": 20, "meta": dice.random() < 0.7}
    policy = {"kind": "lstm", "hidden_dims": [4]}
    return Setting(
        "bandits",
        _search(dice, dice.choice(["es", "pgpe", "snes"]), {"task": task, "policy": policy}),
    )


def program(dice: random.Random) -> Setting:
    """A search for programs."""
    kind = dice.choice(["ga", "random_search"])
    size = "population_size" if kind == "ga" else "programs_per_generation"
    return Setting(
        f"programs, {kind}",
        {
            "task": {
                "kind": "programs",
                "name": dice.choice(["reverse", "echo", "sort3", "count-down"]),
            },
            "policy": None,
            "algorithm": {"kind": kind, size: dice.choice([50, 100]), "stop_on_success": False},
            "stop": {"generations": dice.randint(40, 80)},
        },
    )


def actor_critic(dice: random.Random) -> Setting:
    """Gradients, by TensorFlow; asynchronous updates depend on timing,
    so that those runs must only end well.
    """
    updates = dice.choice(["synchronous", "asynchronous"])
    values = {
        "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
        "policy": {"kind": "mlp", "hidden_dims": [4]},
        "algorithm": {"kind": "actor_critic", "batch_size": 4, "updates": updates},
        "stop": {"generations": 40},
    }
    return Setting(
        f"actor_critic, {updates}", values, reproducible=updates == "synchronous", most_ranks=2
    )


FAMILIES: list[tuple[Callable[[random.Random], Setting], int]] = [
    (function, 6),
    (classic, 5),
    (wrapped, 4),
    (simulated, 2),
    (failing, 3),
    (bandit, 2),
    (program, 3),
    (actor_critic, 1),
]
