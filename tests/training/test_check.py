"""What `hpc-es check` prints about a config."""

from __future__ import annotations

from hpc_es.core.population import Layout
from hpc_es.training.check import LAYERS, layer_lines


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
