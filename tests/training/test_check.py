"""What `hpc-es check` prints about a config."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.keys import Keys
from hpc_es.core.population import Layout
from hpc_es.tasks.problems import VectorTask
from hpc_es.training.check import COMPARISON_SECONDS, LAYERS, layer_lines, warnings


def test_table_of_layers_has_names_shapes_and_numbers_of_parameters() -> None:
    lines = layer_lines(Layout({"hidden_kernel": (4, 300), "bias": (300,), "scale": ()}))
    assert lines == [
        "    hidden_kernel  [4, 300]  1,200",
        "    bias           [300]       300",
        "    scale          []            1",
    ]


def test_long_tables_of_layers_are_cut() -> None:
    lines = layer_lines(Layout({f"layer_{number}": (2,) for number in range(LAYERS + 3)}))
    assert len(lines) == LAYERS + 1 and lines[-1] == "    and 3 more"


def test_a_vector_of_one_part_has_no_table() -> None:
    assert layer_lines(Layout({"x": (7,)})) == []


def toy_problem(keys: Keys) -> Any:
    """Create no problem: the warnings need none."""


class Remembering(VectorTask):
    """A task of the user's whose evaluations depend on earlier ones."""

    def hidden_state_warning(self, seconds: float) -> str | None:
        return f"found within {seconds:g} s" if self.name == "remembering" else None


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Remembering("remembering", toy_problem), [f"found within {COMPARISON_SECONDS:g} s"]),
        (Remembering("forgetting", toy_problem), []),
        (VectorTask("other", toy_problem), []),
    ],
)
def test_task_of_the_user_is_asked_for_hidden_state(task: VectorTask, expected: list[str]) -> None:
    assert warnings(validate({"task": {"env_id": "CartPole-v1"}}), task) == expected
