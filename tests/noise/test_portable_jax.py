"""Portable noise in JAX has the bytes of portable noise in NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.keys import Keys
from hpc_es.noise.counter import BLOCK, CounterNoise
from hpc_es.noise.portable import fill

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import jax
import jax.numpy as jnp

from hpc_es.core.population import Directions, Layout, Perturbed, unperturbed
from hpc_es.devices.jax_setup import configured_jax
from hpc_es.noise.portable import PortableNoise
from hpc_es.noise.portable_jax import Word, candidates, direction, philox
from hpc_es.tasks.jax_episodes import program
from hpc_es.tasks.model import jax_model
from tests.helpers import runs

configured_jax("cpu")

ONES = 2**64 - 1
# Known answers of Random123 (kat_vectors, philox4x64-10): counter and key, result.
KNOWN = (
    (0, (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    (ONES, (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
)


@pytest.mark.parametrize(("word", "expected"), KNOWN)
def test_philox_gives_the_known_answers(word: int, expected: tuple[int, ...]) -> None:
    half = jnp.full(2, word & 0xFFFFFFFF, jnp.uint32)
    result = jax.jit(lambda half: philox([Word(half, half)] * 4, (word, word)))(half)
    for actual, number in zip(result, expected, strict=True):
        assert [int(part[1]) for part in actual] == [number >> 32, number & 0xFFFFFFFF]


@pytest.mark.parametrize("size", [1, 17, BLOCK, 2 * BLOCK + 5])
def test_directions_equal_those_of_numpy_by_bytes(size: int) -> None:
    keys = Keys(2**63 + 12345, 3)
    compiled = jax.jit(lambda generation, pair: direction(keys, generation, pair, 0, size))
    for generation, pair in ((0, 0), (70_000, 2**20 + 1)):
        expected = CounterNoise(keys, size, fill).direction(generation, pair, 0, size)
        result = np.asarray(compiled(np.uint32(generation), np.uint32(pair)))
        assert result.dtype == np.float32 and result.tobytes() == expected.tobytes()


def test_any_part_of_a_direction_can_be_computed() -> None:
    """A part that begins within a block and ends in the next one; and many pairs in one call."""
    keys, start, size = Keys(1), BLOCK - 48, 100
    part = jax.jit(lambda pair, start: direction(keys, 4, pair, start, size))
    pairs = np.arange(3, dtype=np.uint32)
    together = np.asarray(jax.vmap(part, in_axes=(0, None))(pairs, start))
    for pair in range(3):
        whole = CounterNoise(keys, 2 * BLOCK, fill).direction(4, pair, 0, 2 * BLOCK)
        assert together[pair].tobytes() == whole[start : start + size].tobytes()
        assert np.asarray(part(pair, start)).tobytes() == together[pair].tobytes()


SIZE = BLOCK + 40
LAYOUT = Layout({"weights": (SIZE,)})


def perturbed(
    pairs: range, rows: list[int], scales: list[float], centre_of: list[int] | None = None
) -> Perturbed:
    centres = np.random.default_rng(1).standard_normal((2, SIZE)).astype(np.float32)
    directions = Directions(PortableNoise(Keys(9, 2), SIZE), 70_000, pairs)
    where = None if centre_of is None else np.array(centre_of)
    return Perturbed(
        LAYOUT, centres, directions, np.array(rows), np.array(scales, np.float32), where
    )


POPULATIONS = {
    "pairs": perturbed(range(5, 8), [0, 0, 1, 1, 2, 2], [0.1, -0.1] * 3),
    "a part of a pair": perturbed(range(5, 7), [0, 1, 1], [-0.1, 0.1, -0.1]),
    "one direction each": perturbed(range(3), [0, 1, 2], [0.1, 0.2, 0.3]),
    "several centres": perturbed(range(2), [0, 1, 1], [0.1, 0.0, -0.3], [1, 0, 1]),
    "without perturbations": unperturbed(LAYOUT, np.arange(SIZE, dtype=np.float32), 5),
}


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("multiple", [1, 4])
def test_candidates_computed_on_the_device_equal_those_of_numpy_by_bytes(
    name: str, multiple: int
) -> None:
    population = POPULATIONS[name]
    rows = np.asarray(candidates(population, multiple))
    assert len(rows) == -(-len(population) // multiple) * multiple and rows.dtype == np.float32
    assert (
        rows[: len(population)].tobytes() == np.asarray(population.stacked(), np.float32).tobytes()
    )


def test_part_of_the_candidates_may_begin_at_any_element() -> None:
    population = POPULATIONS["several centres"]
    for start, stop in ((3, 20), (16, 17), (BLOCK - 5, BLOCK + 9)):
        part = np.asarray(candidates(population, 1, start, stop))
        assert part.tobytes() == np.asarray(population.elements(start, stop), np.float32).tobytes()


def test_candidates_of_other_noise_are_not_computed_on_the_device() -> None:
    population = POPULATIONS["pairs"]
    assert candidates(replace(population, directions=np.zeros((3, SIZE), np.float32)), 1) is None
    other = Directions(CounterNoise(Keys(9, 2), SIZE), 0, range(3))
    assert candidates(replace(population, directions=other), 1) is None
    scaled = Directions(PortableNoise(Keys(9, 2), SIZE), 0, range(3), np.ones(SIZE, np.float32))
    assert candidates(replace(population, directions=scaled), 1) is None


@pytest.mark.parametrize(
    "task",
    [
        "task={kind: jax_episodes, env_id: 'tests.helpers.jax_walk:walk', lanes: 4, jobs_per_call: 5}",
        "task={kind: model, model: 'tests.helpers.own_models:layers', jobs_per_call: 5}",
    ],
)
def test_results_do_not_depend_on_where_candidates_are_computed(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [
        task,
        "noise={kind: portable}",
        "evaluation={interval: 1, episodes: 3}",
        "stop.generations=2",
    ]
    overrides += ["policy=null"] * ("model" in task)
    runs.here(runs.tiny(tmp_path), tmp_path / "host", overrides)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # what decides
    used = []
    for module in (program, jax_model):
        monkeypatch.setattr(
            module, "candidates", lambda *inputs: used.append(inputs) or candidates(*inputs)
        )
    runs.here(runs.tiny(tmp_path), tmp_path / "device", overrides)
    assert used
    runs.assert_same(tmp_path / "host", tmp_path / "device")
