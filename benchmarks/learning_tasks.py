"""What `benchmarks.learning` runs: configs with a published figure, and the strategies that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.jobs import ROOT
from hpc_es.config import registry


class Figure(NamedTuple):
    """A mean return over 100 episodes, from RL Zoo's table of ARS unless said otherwise."""

    return_: float
    seeds: int  # of which the median is taken


PUBLISHED = {  # configs, each of which stops at the timesteps of the figure or before
    "ars_cartpole": Figure(500, 5),  # 50 thousand timesteps
    "es_pendulum": Figure(-213, 5),  # 2 million
    "ars_pendulum": Figure(-213, 5),  # 2 million
    "cma_lunarlander_continuous": Figure(168, 5),  # 2 million
    "ars_lunarlander_continuous": Figure(168, 3),  # 2 million
    "pgpe_lunarlander_continuous": Figure(168, 3),  # 2 million; the 50 generations of PGPE's authors are 1.6
    "ars_mountaincar_continuous": Figure(96, 5),  # 0.5 million
    "cma_swimmer": Figure(355, 5),  # 2 million
    "ars_swimmer": Figure(355, 3),  # 2 million
    "es_halfcheetah": Figure(4815, 5),  # 12 million
    "ars_halfcheetah": Figure(4815, 3),  # 12 million
    "ars_hopper": Figure(3344, 3),  # 7 million
    "pgpe_walker2d": Figure(2994, 1),  # 75 million
    "pgpe_ant": Figure(2334, 1),  # 75 million
}
OWN = {  # what version 0.1 aimed at
    "es_cartpole": 475.0,
    "es_lunarlander_continuous": 250.0,
    "es_swimmer": 300.0,
}
COMPARED = {  # tasks of the comparison, and their timesteps
    "CartPole-v1": 200_000,
    "Acrobot-v1": 1_000_000,
    "Pendulum-v1": 2_000_000,
    "LunarLanderContinuous-v3": 2_000_000,
    "Hopper-v5": 2_000_000,
    "HalfCheetah-v5": 2_000_000,
}
OVERRIDES = {"Hopper-v5": ("task.reward_offset=-1",)}  # with what a step survived is rewarded with, all learn to stand
SAME = ROOT / "benchmarks/learning_compare.yaml"  # what all strategies have in common
OTHERS = ("novelty",)  # do not search for returns alone


@dataclass(frozen=True)
class Trial:
    """A config with overrides, of which several seeds are run."""

    name: str
    config: Path
    overrides: tuple[str, ...] = ()
    strategy: str = ""
    task: str = ""  # of the comparison
    seeds: int = 5

    @classmethod
    def of_config(cls, name: str) -> Trial:
        """Return the trial of a config of the repository."""
        seeds = PUBLISHED[name].seeds if name in PUBLISHED else 5
        return cls(name, ROOT / f"configs/{name}.yaml", (f"name={name}",), seeds=seeds)

    def changed(self, overrides: Sequence[str]) -> Trial:
        """Return it with more overrides, named by them."""
        return replace(self, name=",".join((self.name, *overrides)), overrides=(*self.overrides, *overrides))


def compared() -> Iterator[Trial]:
    """Yield every strategy that searches vectors, on every task."""
    found = [
        kind for kind in registry.kinds("algorithms") if registry.module("algorithms", kind).NEEDS.searches == "vectors"
    ]
    for task, timesteps in COMPARED.items():
        for kind in found:
            if kind not in OTHERS:
                asked = (f"task.env_id={task}", f"stop.timesteps={timesteps}", f"algorithm.kind={kind}")
                overrides = (*asked, *OVERRIDES.get(task, ()))
                yield Trial(f"compare/{task}/{kind}", SAME, overrides, kind, task, 3)


def target(name: str) -> str:
    """Return the figure that a config is to reach, as text."""
    figure = PUBLISHED[name].return_ if name in PUBLISHED else OWN.get(name)
    return "" if figure is None else f"{figure:.0f}"
