"""The docstrings of algorithms and problems list the arrays of the state: names, ranks, dtypes,
shapes, which grow.
"""

from __future__ import annotations

import pydoc
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from hpc_es.config import registry
from hpc_es.core.data import Array, Arrays, State
from hpc_es.training.build import Parts
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, update_state
from tests.helpers import toys
from tests.helpers.documents import DOCS as FOLDER
from tests.helpers.documents import hooks
from tests.helpers.growing import Walker
from tests.helpers.harness import ROOT
from tests.test_contracts import ANYWHERE, CHAOS, closed_at_the_end, example, opened

GENERATIONS = 5  # the histories of the stop criteria get an entry every fifth one
DOCS: Any = hooks()
FUNCTION: Mapping[str, Any] = {
    "task": {"kind": "function", "function": "tests.helpers.toys:ellipsoid", **ANYWHERE},
    "policy": None,
}
MIXED: Mapping[str, Any] = {
    "task": {"kind": "function", "function": "tests.helpers.toys:mixed", "parameters": toys.MIXED},
    "policy": None,
}
REPEATED: Mapping[str, Any] = {
    "task": {**FUNCTION["task"], "repeats": {"at_least": 1, "at_most": 4}},
    "policy": None,
}
LAGRANGIAN: Mapping[str, Any] = {
    "task": {
        "kind": "function",
        "function": "tests.helpers.toys:disc",
        "dimension": 4,
        "constraints": ["disc", "wall"],
        "constraint_handling": "augmented_lagrangian",
    },
    "policy": None,
}
POINTS: Mapping[str, Any] = {
    "task": {**MIXED["task"], "initial_points": str(ROOT / "tests/helpers/mixed_points.csv")},
    "policy": None,
}
TWO: Mapping[str, str] = {"a": "minimise", "b": "minimise"}
OF_TWO: Mapping[str, Any] = {
    "task": {
        "kind": "function",
        "function": "tests.helpers.toys:two_costs",
        "dimension": 3,
        "objectives": TWO,
        "constraints": ["ball"],
        "measures": {"x": {"from": "parameter.x0", "range": [0, 1]}},
        "metrics": ["sum"],
    },
    "policy": None,
}
ONE_BEGIN = {**FUNCTION, "task": {**FUNCTION["task"], "initial": 1.0}}
_ = closed_at_the_end  # a fixture of every test here


class Case(NamedTuple):
    """An algorithm with settings that differ from its example;
    `algorithm` has further options of the algorithm.
    """

    kind: str
    algorithm: Mapping[str, Any] = {}
    others: Mapping[str, Any] = {}

    def __str__(self) -> str:
        values = [
            *self.algorithm.values(),
            *(["function"] if self.others.get("policy", "") is None else []),
        ]
        return "-".join(
            [self.kind, *(re.sub(r"\W+", "_", str(value)).strip("_") for value in values)]
        )


def searched(kind: str, others: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a task, with several objectives if the algorithm needs them."""
    if not registry.module("algorithms", kind).NEEDS.objectives:
        return others
    if others is FUNCTION:
        return OF_TWO
    costs: dict[str, Any] = {"function": "tests.helpers.toys:mixed_costs", "objectives": TWO}
    if "initial_points" in others["task"]:
        costs |= {"initial_points": str(ROOT / "tests/helpers/mixed_costs_points.csv")}
    return {**others, "task": {**others["task"], **costs}}


def normalised(deviation: str) -> Mapping[str, Any]:
    """A task whose observations are normalised."""
    task = {"kind": "episodes", "env_id": "tests.helpers.toys:Chaos-v0"}
    return {
        "task": {**task, "observation_normalization": {"enabled": True, "deviation": deviation}}
    }


VECTORS = [
    kind
    for kind in registry.kinds("algorithms")
    if registry.module("algorithms", kind).NEEDS.searches == "vectors"
    and not registry.module("algorithms", kind).NEEDS.measures
]
CASES = [
    *(Case(kind) for kind in registry.kinds("algorithms")),
    *(Case(kind, others=searched(kind, FUNCTION)) for kind in VECTORS if kind != "novelty"),
    *(
        Case(kind, {"optimizer": {"kind": optimizer}})
        for kind in ("es", "pgpe", "novelty")
        for optimizer in ("adam", "rmsprop", "sgd", "clipup", "none")
    ),
    Case("es", {"anchored_decay": 0.1}),
    *(Case("es", others=normalised(deviation)) for deviation in ("floored", "sample")),
    *(
        Case("cma_es", {"restarts": how, "stops": {"max_generations": 2}}, FUNCTION)
        for how in ("ipop", "bipop")
    ),
    *(
        Case(kind, others=searched(kind, MIXED))
        for kind in VECTORS
        if registry.module("algorithms", kind).NEEDS.mixed
    ),
    Case("cma_es", others=LAGRANGIAN),
    Case("cma_es", others=REPEATED),
    *(
        Case(kind, {"noise_handling": mode, "population_size": 8}, FUNCTION)
        for kind in ("cma_es", "sep_cma_es")
        for mode in ("reevaluate", "learning_rate")
    ),
    *(
        Case(kind, others=searched(kind, POINTS))
        for kind in VECTORS
        if registry.module("algorithms", kind).NEEDS.injects
    ),
    Case("deep_ga", {"parents": 3}, ONE_BEGIN),
    Case("map_elites", {"archive": {"kind": "unstructured", "cells": 9}}),
    Case("policy_gradient", {"topk": 0, "topk_loss_hparam": 0.0, "alpha": 0.0}),
    Case("policy_gradient", {"alpha": 0.0, "ema_baseline_decay": 0.0, "topk_noise": 0.5}),
    Case("policy_gradient", {"entropy_target": 10.0, "restart_programs": 8}),
    Case("actor_critic", {"entropy": {"start": 0.1, "end": 0.0, "timesteps": 100}}),
    Case(
        "actor_critic",
        {"updates": "asynchronous", "update_every": 4},
        {"task": {"kind": "episodes", "env_id": "CartPole-v1", "max_episode_steps": 9}},
    ),
]


def is_there(case: Case) -> bool:
    """Whether the algorithm and the task of a case exist: packages can be removed."""
    task = {**example("algorithms", case.kind), **case.others}["task"]["kind"]
    return case.kind in registry.kinds("algorithms") and task in registry.kinds("tasks")


CASES = [case for case in CASES if is_there(case)]


def built(case: Case) -> Parts:
    """The parts of a case."""
    settings = {**example("algorithms", case.kind), **case.others}
    return opened({**settings, "algorithm": {**settings["algorithm"], **case.algorithm}})


def states(parts: Parts) -> list[State]:
    """The states before and after some generations."""
    result, executor = [parts.initial()], SerialExecutor()
    for _ in range(GENERATIONS):
        evaluated = executor.run(Generation(parts, result[-1]))
        units = [parts.problem.unit(unit) for unit in evaluated.learned]
        result.append(
            update_state(parts.algorithm, parts.problem, result[-1], evaluated.results, units)[1]
        )
    return result


def documented(parts: Parts) -> dict[tuple[str, str], Any]:
    """The arrays that the algorithm and the problem document, by group and name."""
    return {**DOCS.state_arrays(type(parts.algorithm)), **DOCS.state_arrays(type(parts.problem))}


def arrays(state: State) -> dict[tuple[str, str], Array]:
    """The arrays of a state, by group and name, without those of the scopes of other strategies,
    which document them.
    """
    groups: Mapping[str, Arrays] = {"shared": state.shared, "master": state.master}
    return {
        (group, name): array
        for group, members in groups.items()
        for name, array in members.items()
        if "/" not in name
    }


def mistakes(
    lines: Mapping[tuple[str, str], Any], run: Sequence[State], growing: bool
) -> list[str]:
    """Differences between the states of a run and the documented arrays."""
    first = arrays(run[0])
    result = [
        f"{group} {name} is not documented" for group, name in first if (group, name) not in lines
    ]
    for key, line in lines.items():
        shapes = {arrays(state)[key].shape for state in run if key in arrays(state)}
        if not shapes and not line.condition:
            result.append(f"{line.group} {line.name} is documented, but not in the state")
        if len(shapes) > 1 and not line.grows:
            result.append(f"{line.name} changes its shape, but is not marked as growing")
        if line.grows and not growing:
            result.append(f"{line.name} is marked as growing, but NEEDS.growing is false")
    return [*result, *(mistake for state in run for mistake in wrong_types(lines, state))]


def wrong_types(lines: Mapping[tuple[str, str], Any], state: State) -> Iterator[str]:
    """Yield the dtypes and shapes of a state that are not as documented;
    equal words in shapes are equal sizes.
    """
    sizes = {"params": state.theta.size}
    for key, array in arrays(state).items():
        if key not in lines:
            continue
        line = lines[key]
        if array.dtype != (state.theta.dtype if line.dtype == "dtype" else np.dtype(line.dtype)):
            yield f"{line.name} is {array.dtype}, but documented as {line.dtype}"
        expected = [
            int(word)
            if word.isdigit()
            else sizes.setdefault(word, size)
            if word.isidentifier()
            else size
            for word, size in zip(line.shape, array.shape, strict=False)
        ]
        if array.ndim != len(line.shape) or list(array.shape) != expected:
            yield f"{line.name} is {list(array.shape)}, but documented as {list(line.shape)}, here {expected}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_array_of_the_state_is_documented_with_its_ranks_type_and_shape(case: Case) -> None:
    parts = built(case)
    assert parts.growing == registry.module("algorithms", case.kind).NEEDS.growing
    assert mistakes(documented(parts), states(parts), parts.growing) == []


def test_custom_algorithm_example_documents_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "own_algorithm"))
    parts = built(
        Case("es", others={"algorithm": {"kind": "my_search:Hill", "population_size": 6}})
    )
    assert mistakes(documented(parts), states(parts), parts.growing) == []


@pytest.mark.satellite("actor_critic", "bandits", "programs")
def test_every_array_that_is_documented_as_optional_occurs() -> None:
    lines: dict[tuple[str, str, str], Any] = {}
    owners = [pydoc.locate(name) for name in DOCS.PARTS]
    for owner in [
        *owners,
        *(registry.module("algorithms", kind).build for kind in registry.kinds("algorithms")),
    ]:
        own = [line for line in DOCS.own_arrays(owner) if not isinstance(line, str)]
        lines |= {(owner.__qualname__, line.group, line.name): line for line in own}
    for case in CASES:
        parts = built(case)
        names = arrays(parts.initial()).keys()
        for owner in _owners(parts):
            for group, name in names:
                lines.pop((owner, group, name), None)
    # of compiled environments, which need JAX
    assert list(lines) == [("ActorCritic", "shared", "lanes")]


def _owners(parts: Parts) -> set[str]:
    """The names of the classes and functions that document a state of these parts."""
    todo: list[Any] = [*type(parts.algorithm).__mro__, *type(parts.problem).__mro__]
    for owner in todo:
        todo += [pydoc.locate(line) for line in DOCS.own_arrays(owner) if isinstance(line, str)]
    return {owner.__qualname__ for owner in todo}


def test_every_growing_array_grows() -> None:
    """In one of the runs."""
    growing, changed = set(), set()
    for case in (
        Case("snes"),
        Case("novelty"),
        Case("deep_ga"),
        Case("deep_ga", {"parents": 3}, ONE_BEGIN),
        Case("map_elites"),
        Case("cma_mae"),
    ):
        parts = built(case)
        run = states(parts)
        growing |= {(case.kind, *key) for key, line in documented(parts).items() if line.grows}
        changed |= {
            (case.kind, *key)
            for key in arrays(run[0])
            if len({arrays(state)[key].shape for state in run}) > 1
        }
    assert growing == changed


# The check itself.


class Misdocumented(Walker):
    """A walk with wrong documentation of its arrays."""


RIGHT = """
State, shared:
    theta: dtype[params]; where it is
    archive: float32[entries, params], grows; where it was
State, master:
    scores: float64[entries], grows; best return of each generation
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("", "", None),
        ("archive: float32", "archive: float64", "archive is float32, but documented as float64"),
        (
            "    scores: float64[entries], grows; best return of each generation\n",
            "",
            "master scores is not documented",
        ),
        ("State, master:", "State, shared:", "master scores is not documented"),
        ("State, master:", "State, shared:", "shared scores is documented, but not in the state"),
        ("params], grows", "params]", "archive changes its shape, but is not marked as growing"),
        (
            "[entries, params]",
            "[params, entries]",
            "archive is [1, 37], but documented as ['params', 'entries']",
        ),
        ("[entries], grows", "[], grows", "scores is [1], but documented as []"),
        ("scores:", "scored:", "master scored is documented, but not in the state"),
    ],
)
def test_wrong_documentation_of_an_array_is_detected(
    right: str, wrong: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert right in RIGHT
    monkeypatch.setattr(Misdocumented, "__doc__", RIGHT.replace(right, wrong) if right else RIGHT)
    parts = opened(
        {
            **example("algorithms", "es"),
            "task": CHAOS,
            "algorithm": {"kind": "tests.helpers.growing:Walk"},
        }
    )
    messages = mistakes(DOCS.state_arrays(Misdocumented), states(parts), parts.growing)
    assert any(message in item for item in messages) if message else messages == []
    assert not message or mistakes(DOCS.state_arrays(Misdocumented), states(parts), False) != []


def test_growing_arrays_need_a_growing_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misdocumented, "__doc__", RIGHT)
    parts = opened(
        {
            **example("algorithms", "es"),
            "task": CHAOS,
            "algorithm": {"kind": "tests.helpers.growing:Walk"},
        }
    )
    message = "archive is marked as growing, but NEEDS.growing is false"
    assert message in mistakes(DOCS.state_arrays(Misdocumented), states(parts), False)


@pytest.mark.parametrize(
    "line", ["theta dtype[params]; where it is", "theta: dtype[params]", "of `es`"]
)
def test_line_without_an_array_is_an_error(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misdocumented, "__doc__", f"A walk.\n\nState, shared:\n    {line}\n")
    with pytest.raises(ValueError, match="Misdocumented: not a line of a section State"):
        DOCS.state_arrays(Misdocumented)


# The page.


def test_page_of_states_has_every_array_of_every_algorithm_and_task() -> None:
    page = DOCS.on_page_markdown((FOLDER / "algorithms" / "state.md").read_text(encoding="utf-8"))
    sections = dict(
        re.findall(r"^### `?([\w ]+)`?\n\n(.*?)(?=^### |\Z)", page, re.MULTILINE | re.DOTALL)
    )
    anchors = {f"#{title.lower().replace(' ', '-')}" for title in sections}
    assert set(re.findall(r"\]\((#[\w-]+)\)", page)) <= anchors
    assert sections.keys() >= set(registry.kinds("algorithms"))
    for kind in filter(lambda kind: is_there(Case(kind)), registry.kinds("algorithms")):
        text = "".join(sections[title] for title in _titles(sections, kind))
        for group, name in arrays(built(Case(kind)).algorithm.initial()):
            assert f"| `{name}` | {'all' if group == 'shared' else 0} |" in text, (kind, name)
    text = sections["Observation statistics"] + sections["Best vector of an objective"]
    for others in (normalised("floored"), normalised("sample"), FUNCTION):
        carried = built(Case("es", others=others)).problem.carried()
        assert all(f"| `{name}` |" in text for name in (*carried.shared, *carried.master))


def _titles(sections: Mapping[str, str], title: str) -> Iterator[str]:
    """Yield the titles of a section and of those it refers to."""
    yield title
    for further in re.findall(r"\[([\w ]+)\]\(#", sections[title]):
        yield from _titles(sections, further)
