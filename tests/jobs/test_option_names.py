"""Options of a custom kind are its own business, whatever their names are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.extend import Needs, Offers, Requirement, Setting, option, options
from hpc_es.storage import answers
from hpc_es.storage.answers import KEYS
from hpc_es.training.build import build_task
from tests.helpers import named_options
from tests.helpers.named_options import HERE, KINDS, OTHERS, Climber, of_built_in_kinds

NAMES = of_built_in_kinds()
ROUNDS = max(map(len, NAMES.values()))
SECTIONS = {"tasks": "task", "algorithms": "algorithm", "policies": "policy", "noise": "noise"}


def section(package: Any, number: int, named: bool) -> dict[str, Any]:
    """A section with all options of a custom kind, as built-in kinds name them or renamed."""
    prefix = "" if named else OTHERS
    kind = f"{HERE}:{'Named' if named else 'Other'}{KINDS[package].__name__}"
    return {
        "kind": kind,
        **{prefix + name: values[number % len(values)] for name, values in NAMES.items()},
    }


def trained(config: dict[str, Any], directory: Path) -> list[Any]:
    """The metrics that follow from the search, theta, and what the run says that it has found."""
    with hpc_es.train(config, directory) as run:
        rows = [
            (row["return_mean"], row["return_max"], row["episodes_this_generation"]) for row in run
        ]
        theta = run.state.theta.tobytes()
    result = json.loads((directory / "result.json").read_text())
    return [*rows, theta, {name: result.get(name) for name in KEYS}, answers.read_found(directory)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("package", KINDS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_custom_kind_with_options_of_built_in_names_trains_as_with_other_names(
    package: Any, number: int, tmp_path: Path
) -> None:
    results = []
    for named in (True, False):
        config: dict[str, Any] = {
            "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
            "algorithm": {"kind": "es", "population_size": 8},
            "stop": {"generations": 3},
            "report": {"plot_interval_seconds": 0},
            "evaluation": {"interval": 2, "episodes": 2},
        }
        if package in {"algorithms", "tasks"}:
            config["task"] = {"kind": f"{HERE}:OtherBowlTask"}
        config["noise"] = {"kind": "counter"}
        config[SECTIONS[package]] = section(package, number, named)
        results.append(trained(config, tmp_path / str(named)))
    assert results[0] == results[1]
    assert len(results[0]) == 3 + 3


def test_no_option_may_have_the_name_of_a_method_of_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field = {"__annotations__": {"kind": str, "problems": int}, "kind": option("this class", "x")}
    wrong = options(type("Options", (), {**field, "problems": option("a number", 1)}))
    monkeypatch.setattr(named_options.OtherBowlTask, "Options", wrong)  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match="without the field problems, which are methods of options"
    ):
        validate({"task": {"kind": f"{HERE}:OtherBowlTask"}})


def test_requirement_of_an_option_is_checked_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(options: Any) -> Needs:
        because = Setting("algorithm.memory", str(options.memory))
        return Needs(
            searches="vectors",
            noise=True,
            requires=(Requirement("mpi.update", ("gathered",), because),),
        )

    own = {"__annotations__": {"kind": str, "memory": int}, "kind": option("this class", "x")}
    monkeypatch.setattr(
        Climber,
        "Options",
        options(type("Options", (), {**own, "memory": option("a number", 5)})),
        False,
    )
    monkeypatch.setattr(Climber, "needs", staticmethod(needs), raising=False)
    config = {"task": {"kind": f"{HERE}:OtherBowlTask"}, "algorithm": {"kind": f"{HERE}:Climber"}}
    validate(config)
    with pytest.raises(ConfigError) as raised:
        validate({**config, "mpi": {"update": "replicated"}})
    (problem,) = raised.value.problems
    assert problem == (
        "mpi.update",
        "is 'replicated', but algorithm.memory is 5: expected gathered",
    )


def test_task_that_closes_generations_needs_the_methods_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = Offers(problems=("vectors",), any_chunks=True, close_at=0.5)
    monkeypatch.setattr(
        named_options.OtherBowlTask, "offers", staticmethod(lambda options: offers), raising=False
    )  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError,
        match=r"declares Offers\.close_at, but Bowl lacks may_close and close_generation",
    ):
        build_task(validate({"task": {"kind": f"{HERE}:OtherBowlTask"}}))


def test_declaration_of_another_type_is_an_error_of_the_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        named_options.OtherBowlTask, "offers", staticmethod(lambda options: {}), raising=False
    )  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"offers\(options\) of '.*OtherBowlTask' returns dict: expected Offers"
    ):
        validate({"task": {"kind": f"{HERE}:OtherBowlTask"}})
