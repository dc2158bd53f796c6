from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpc_es import cli
from hpc_es.core.errors import ConfigError
from tests.helpers.harness import mpiexec

PARTS = """
from dataclasses import dataclass

import numpy as np

from hpc_es.extend import *

def as_kind(**attributes):
    def decorate(cls):
        @options
        class Options:
            kind: str = option("this class", f"parts:{cls.__name__}")
            population_size: Count = option("jobs", 4)

        for name, value in {"Options": Options, **attributes}.items():
            setattr(cls, name, value)
        return cls

    return decorate

@as_kind(NEEDS=Needs(searches="vectors", noise=True))
@dataclass(frozen=True)
class Hill(BaseStrategy):
    def initial(self):
        return State(0, {"theta": self.first_theta()}, {})

    def tell(self, state, results):
        return State(state.generation + 1, state.shared, {}), {}

@as_kind()
class Unstarted(Hill):
    initial = None

@as_kind(NEEDS=Needs(searches="vectors", noise=True))
@dataclass(frozen=True)
class Paired(PairedStrategy):
    pass

@as_kind()
class Net(FeedForwardPolicy):
    @classmethod
    def build(cls, options, spaces):
        return cls()

@as_kind()
class Forgetful(FeedForwardPolicy):
    @classmethod
    def build(cls, options, spaces):
        policy = cls()
        policy.layout = Layout({"weights": (spaces.observations.size, 2)})
        return policy

    def outputs(self, parameters, inputs):
        return inputs

    def bind(self, parameters, normaliser):
        return object()

@as_kind(OFFERS=Offers(problems=("vectors",)))
class Bowl:
    @staticmethod
    def build(options, repetition=0):
        return VectorTask("bowl", lambda keys: VectorProblemDefaults())

@as_kind()
class Nothing(Bowl):
    @staticmethod
    def build(options, repetition=0):
        return Nothing()

@as_kind()
class Silence:
    @staticmethod
    def build(options, keys, layout, shared):
        return Silence()

@as_kind()
class Shared(Silence):
    share = staticmethod(lambda options, keys, world: None)
"""
EPISODES = "task: {kind: episodes, env_id: CartPole-v1}\nstop: {generations: 1}\n"
CASES = [  # (part, reported line)
    (
        "algorithm: {kind: 'parts:Unstarted'}",
        "algorithm.kind: Unstarted lacks initial(): expected all methods and ",
    ),
    (
        "algorithm: {kind: 'parts:Hill'}",
        "algorithm.kind: Hill lacks candidates(state, chunk), or an evaluate(",
    ),
    (
        "algorithm: {kind: 'parts:Hill'}",
        "algorithm.kind: Hill lacks partial_update(state, prepared, block)",
    ),
    ("algorithm: {kind: 'parts:Paired'}", "abstract class Paired with"),
    ("policy: {kind: 'parts:Net'}", "abstract class Net with"),
    (
        "policy: {kind: 'parts:Forgetful'}",
        "object lacks act(observations), keep(rows), restart(row): expected all ",
    ),
    (
        "task: {kind: 'parts:Bowl'}",
        "VectorProblemDefaults lacks layout, initial(rng), evaluate(population, jobs, ",
    ),
    (
        "task: {kind: 'parts:Nothing'}",
        "Nothing lacks name, spaces, problem(searched, policy, keys, unit), close(): ",
    ),
    (
        "noise: {kind: 'parts:Silence'}",
        "define what is missing, or inherit from BlockNoise, which has defaults for ",
    ),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    return tmp_path


def config(path: Path, part: str) -> str:
    (path / "config.yaml").write_text((EPISODES if "task" not in part else "") + part + "\n")
    return str(path / "config.yaml")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("part", "line"), CASES)
def test_check_names_missing_members_of_a_custom_part(part: str, line: str, here: Path) -> None:
    with pytest.raises(ConfigError) as error:
        cli.run(["check", config(here, part)])
    assert line in str(error.value)


@pytest.mark.parametrize(
    "part", ["algorithm: {kind: 'parts:Unstarted'}", "noise: {kind: 'parts:Shared'}"]
)
def test_run_reports_an_incomplete_part_on_one_rank_before_it_starts(part: str, here: Path) -> None:
    done = mpiexec(2, ["-m", "hpc_es.main", config(here, part)])
    assert done.status == 2 and "lacks" in done.stderr and "Traceback" not in done.stderr, str(done)
