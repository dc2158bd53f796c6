"""Layouts, and the candidates that a population describes, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_es.core import population as population_module
from hpc_es.core.keys import Keys
from hpc_es.core.population import (
    Directions,
    Explicit,
    Factorisation,
    Layout,
    LowRank,
    Perturbed,
    Population,
)
from hpc_es.noise.counter import BLOCK, CounterNoise
from tests.helpers.populations import centre, explicit, population

LAYOUT = Layout({"kernel": (2, 3), "bias": (3,), "scale": ()})


def test_parts_of_a_layout_are_consecutive() -> None:
    assert (LAYOUT.size, LAYOUT.spans) == (10, {"kernel": (0, 6), "bias": (6, 9), "scale": (9, 10)})
    parts = LAYOUT.split(np.arange(20.0).reshape(2, 10))
    assert parts["kernel"].tolist() == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]
    assert (parts["bias"].tolist(), parts["scale"].tolist()) == ([[6, 7, 8], [16, 17, 18]], [9, 19])


def test_join_reverses_split_and_refuses_parts_of_another_shape() -> None:
    vector = np.arange(10, dtype=np.float32)
    assert LAYOUT.join(LAYOUT.split(vector)).tobytes() == vector.tobytes()
    with pytest.raises(ValueError, match=r"bias: expected the shape \(3,\), found \(2,\)"):
        LAYOUT.join({**LAYOUT.split(vector), "bias": [1.0, 2.0]})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_candidates_are_the_centre_and_scaled_directions(dtype: type[np.floating]) -> None:
    """(1, 2) + 0.5 * (3, -1), - 0.5 * (3, -1), + 2 * (0, 4) and the centre, in its dtype."""
    directions = np.array([[3, -1], [0, 4]], np.float32)
    scales = np.array([0.5, -0.5, 2, 0], dtype)
    created = population(np.array([1, 2], dtype), directions, np.array([0, 0, 1, 1]), scales)
    assert (len(created), created.stacked().dtype) == (4, dtype)
    assert created.stacked().tolist() == [[2.5, 1.5], [-0.5, 2.5], [1, 10], [1, 2]]
    assert directions.tolist() == [[3, -1], [0, 4]]


def test_candidates_of_float64_have_its_precision() -> None:
    theta = np.array([1.0 + 2.0**-40])
    created = population(
        theta, np.ones((1, 1), np.float32), np.zeros(1, np.intp), np.array([2.0**-45])
    )
    assert created.stacked()[0, 0] == 1 + 2.0**-40 + 2.0**-45
    assert centre(theta, 2).stacked().tolist() == [[1 + 2.0**-40]] * 2


def test_candidates_can_be_the_centre_or_explicit_vectors() -> None:
    alone = centre(np.array([1, 2], np.float32), 3)
    assert (len(alone), alone.stacked().tolist(), alone.stacked().dtype) == (
        3,
        [[1, 2]] * 3,
        np.float32,
    )
    values = np.arange(6.0).reshape(3, 2)
    assert len(explicit(values)) == 3 and np.shares_memory(explicit(values).stacked(), values)


@pytest.mark.parametrize("ratios", [None, np.linspace(0.5, 2, 2 * BLOCK + 7, dtype=np.float32)])
def test_part_across_blocks_equals_the_stacked_candidates(ratios: Any) -> None:
    """A part that starts and ends in the middle of a block of the noise."""
    layout = Layout({"first": (5,), "middle": (2, BLOCK // 2), "last": (BLOCK + 2,)})
    theta = np.linspace(-1, 1, layout.size, dtype=np.float32)
    directions = Directions(CounterNoise(Keys(1), layout.size), 3, [4, 2], ratios)
    created = Perturbed(
        layout, theta[None], directions, np.array([0, 1, 1]), np.array([0.1, 0.1, -0.1], np.float32)
    )
    stack = created.stacked()
    for name, (start, stop) in layout.spans.items():
        part = created.part(name)
        assert part.shape == (3, *layout.shapes[name])
        assert part.tobytes() == np.ascontiguousarray(stack[:, start:stop]).tobytes()


@pytest.mark.parametrize("edges", [range(0, 10, 4), [0, 1, 7]])
def test_steps_over_a_population_end_at_block_edges(edges: Any) -> None:
    """Steps have the requested number of elements, or a block if it is larger."""

    class Blocks:
        def __init__(self) -> None:
            self.edges = edges

    noise: Any = Blocks()
    for elements in (1, 3, 4, 6, 9, 100):
        steps = list(Directions(noise, 0, [0]).steps(0, 10, elements))
        ends = [end for _, end in steps]
        assert [start for start, _ in steps] == [0, *ends[:-1]] and ends[-1] == 10
        assert set(ends) <= {*edges, 10}
        widest = max(end - start for start, end in zip(edges, [*edges[1:], 10], strict=True))
        assert all(end - start <= max(elements, widest) for start, end in steps)


def test_population_can_have_several_centres() -> None:
    """(1, 2) + 0.5 (4, 8), (10, 20) - 0.5 (4, 8)."""
    centres = np.array([[1.0, 2], [10, 20]])
    created = Perturbed(
        Layout({"x": (2,)}),
        centres,
        np.array([[4.0, 8]]),
        np.array([0, 0]),
        np.array([0.5, -0.5]),
        centre_of=np.array([0, 1]),
    )
    assert created.stacked().tolist() == [[3, 6], [8, 16]]
    assert Perturbed(
        created.layout, centres, np.zeros((0, 2)), created.rows, created.scales, np.array([1, 0])
    ).stacked().tolist() == [
        [10, 20],
        [1, 2],
    ]


def test_part_of_explicit_vectors_is_a_slice() -> None:
    created: Population = Explicit(LAYOUT, np.arange(20.0).reshape(2, 10))
    assert created.part("bias").tolist() == [[6, 7, 8], [16, 17, 18]]


# Low rank. The dense layer of these tests: W = [[1, 2, 0], [-1, 0.5, 3]], x = [3, 4].

DENSE = Layout({"kernel": (2, 3), "bias": (3,)})
W, X = [1, 2, 0, -1, 0.5, 3], np.array([3, 4], np.float32)


class Any2x3(Factorisation):
    """Factors for matrices of any size; 2 x 3 has more elements than factors of rank 1 only."""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:  # type: ignore[override]
        return {"kernel": (2, 3)}


def low_rank(
    numbers: Any, rank: int, scales: list[float], layout: Layout = DENSE, **options: Any
) -> LowRank:
    centre = np.array([*W, 0.5, 0, -0.5], np.float32)[: layout.size]
    rows = np.zeros(len(scales), np.intp)
    numbers = np.array([numbers], np.float32)
    return LowRank(
        Any2x3(layout, rank), centre, numbers, rows, np.array(scales, np.float32), **options
    )


def test_low_rank_candidates_of_a_dense_layer_by_hand() -> None:
    """left (2, -1), right (1, 0, -2), noise of the biases (1, 1, 0);
    y = x W + b of both candidates of a pair.
    """
    created = low_rank([2, -1, 1, 0, -2, 1, 1, 0], 1, [0.1, -0.1])
    kernels, biases = created.part("kernel"), created.part("bias")
    np.testing.assert_allclose(
        X @ kernels + biases, [[-0.2, 8.1, 11.1], [-0.8, 7.9, 11.9]], rtol=1e-6
    )
    left, right = created.factors("kernel")
    without_forming = (
        X @ created.centre_part("kernel") + np.einsum("x,jrx,jry->jy", X, left, right) + biases
    )
    np.testing.assert_allclose(without_forming, X @ kernels + biases, rtol=1e-6)
    assert created.stacked().tolist() == [
        [*k.ravel(), *b] for k, b in zip(kernels, biases, strict=True)
    ]
    # from within a row
    assert created.elements(1, 7).tobytes() == created.stacked()[:, 1:7].tobytes()


def test_candidates_of_large_parts_are_at_addresses_that_compiled_calls_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(population_module, "MAX_STEP_ELEMENTS", 4)
    directions = Directions(CounterNoise(Keys(1), 10), 0, [0])
    formed = Perturbed(
        LAYOUT,
        np.ones((1, 10), np.float32),
        directions,
        np.zeros(2, np.intp),
        np.ones(2, np.float32),
    )
    factored = low_rank([2, -1, 1, 0, -2, 1, 1, 0], 1, [0.1, -0.1])
    kept = [candidates.stacked() for candidates in [formed, factored] * 4]
    assert not any(stack.ctypes.data % 64 for stack in kept)


def test_low_rank_candidates_of_rank_2_by_hand() -> None:
    """E = [[1, 2], [0, -1]]^T [[1, 0, 1], [0, 2, -1]] / sqrt(2)."""
    layout = Layout({"kernel": (2, 3)})
    created = low_rank([1, 2, 0, -1, 1, 0, 1, 0, 2, -1], 2, [0.1], layout)
    expected = [[-0.222183, 7.434315, 13.060660]]
    np.testing.assert_allclose(X @ created.part("kernel"), expected, atol=1e-6)


def test_ratios_scale_every_element_of_a_perturbation() -> None:
    numbers = [2, -1, 1, 0, -2, 1, 1, 0]
    ratios = np.arange(9, dtype=np.float32)
    created = low_rank(numbers, 1, [0.5], ratios=ratios)
    e = np.array([2, 0, -4, -1, 0, 2, 1, 1, 0])
    np.testing.assert_allclose(created.stacked()[0], created.centre + 0.5 * ratios * e, rtol=1e-6)
    assert not created.matrices


def test_matrices_with_more_elements_than_factors_are_of_low_rank() -> None:
    """Kernels as matrices [all axes but the last, last]; 1 * (8 * 4 + 3) < 8 * 4 * 3,
    but 2 + 2 = 2 * 2.
    """
    shapes = {
        "conv": (4, 2, 4, 3),
        "square": (2, 2),
        "bias": (3,),
        "scale": (),
        "table": (50, 4),
        "other": (50, 4),
    }
    chosen = Factorisation(Layout(shapes), 1, full=("other",))
    assert chosen.matrices == {"conv": (32, 3), "table": (50, 4)}
    assert chosen.compact.shapes == {
        **{"conv:left": (1, 32), "conv:right": (1, 3), "square": (2, 2), "bias": (3,), "scale": ()},
        **{"table:left": (1, 50), "table:right": (1, 4), "other": (50, 4)},
    }
    # 3 * 54 = 162 < 200; 105 > 96
    assert list(Factorisation(Layout(shapes), 3).matrices) == ["table", "other"]


def test_low_rank_kernel_of_a_convolution_by_hand() -> None:
    """Image 1 .. 9, kernel 2 x 2 x 1 x 2 as the matrix [[1, 0], [-1, 2], [0, 1], [0.5, 0]],
    left (1, -1, 2, 0).
    """
    layout = Layout({"kernel": (2, 2, 1, 2)})
    kernel = np.array([1, 0, -1, 2, 0, 1, 0.5, 0], np.float32)
    numbers = np.array([[1, -1, 2, 0, 1, -2]], np.float32)
    created = LowRank(
        Factorisation(layout, 1), kernel, numbers, np.zeros(1, np.intp), np.array([0.1], np.float32)
    )
    formed = created.part("kernel")[0].reshape(4, 2)
    np.testing.assert_allclose(formed, [[1.1, -0.2], [-1.1, 2.2], [0.2, 0.6], [0.5, 0]], rtol=1e-6)
    patches = np.array([[1, 2, 4, 5], [2, 3, 5, 6], [4, 5, 7, 8], [5, 6, 8, 9]])
    np.testing.assert_allclose(
        patches @ formed, [[2.2, 6.6], [2.9, 9.2], [4.3, 14.4], [5, 17]], rtol=1e-5
    )
