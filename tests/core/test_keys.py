"""Random numbers are computed from keys that state their purpose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpc_es.core.keys import Keys, Purpose


def test_equal_keys_give_equal_numbers() -> None:
    first, second = (
        Keys(5, 1).generator(Purpose.PROBE, 3, 2, 1).standard_normal(100) for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_different_keys_give_different_numbers() -> None:
    """Also if two fields have swapped values, or one has the bits of the next."""
    uses = [
        (seed, repetition, purpose, generation, index, block)
        for seed, repetition, generation, index, block in itertools.product(
            (0, 1, 2**63 - 1), *[(0, 1, 2)] * 4
        )
        for purpose in Purpose
    ]
    drawn = {Keys(seed, r).generator(p, g, i, b).bytes(16) for seed, r, p, g, i, b in uses}
    assert len(drawn) == len(uses)


def test_long_streams_of_adjacent_keys_do_not_overlap() -> None:
    """The lowest counter word belongs to the stream: 4 words per count,
    so block 1 starts after 2**66 words.
    """
    draws = [
        Keys(1).generator(Purpose.PERTURBATION, block=block).integers(2**63, size=50_000)
        for block in range(3)
    ]
    assert len(np.unique(np.concatenate(draws))) == 150_000


def test_seed_0_differs_from_other_seeds() -> None:  # T54
    assert Keys(0).seed31(Purpose.ENVIRONMENT) == Keys(0).seed31(Purpose.ENVIRONMENT)
    assert Keys(0).seed31(Purpose.ENVIRONMENT) != Keys(1).seed31(Purpose.ENVIRONMENT)


def test_seeds_for_environments_fit_31_bits_and_use_them() -> None:
    seeds = [Keys(3).seed31(Purpose.ENVIRONMENT, 0, index) for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert min(seeds) >= 0
    assert 2**30 < max(seeds) < 2**31


def test_reused_generator_equals_a_new_one() -> None:
    """Also after other draws, which may leave half a word."""
    keys = Keys(7, 2)
    for index, size in itertools.product(range(3), (1, 3)):
        keys.borrowed(Purpose.GENETICS, 1, 9).integers(100, size=5, dtype=np.int32)
        of = Purpose.ENVIRONMENT, 4, index, 1
        expected = keys.generator(*of).integers(2**31, size=size)
        assert keys.borrowed(*of).integers(2**31, size=size).tolist() == expected.tolist()
        assert keys.seed31(*of) == expected[0]
        assert keys.borrowed(*of).random() == keys.generator(*of).random()


def test_values_of_purposes_do_not_change() -> None:
    """They are in the keys of all random numbers of old checkpoints."""
    assert [(p.name, p.value) for p in Purpose][:9] == [
        ("INITIAL_PARAMETERS", 1),
        ("NOISE_TABLE", 2),
        ("PERTURBATION", 3),
        ("ENVIRONMENT", 4),
        ("ACTION_NOISE", 5),
        ("OBSERVATION_SAMPLING", 6),
        ("EVALUATION", 7),
        ("PROBE", 8),
        ("REPETITION", 9),
    ]


@pytest.mark.parametrize("field", ["seed", "repetition", "purpose", "generation", "index", "block"])
def test_streams_that_differ_in_one_field_are_uncorrelated(field: str) -> None:
    def drawn(value: int) -> np.ndarray:
        values = dict.fromkeys(
            ("seed", "repetition", "purpose", "generation", "index", "block"), 4
        ) | {field: value}
        keys = Keys(values.pop("seed"), values.pop("repetition"))
        return keys.generator(Purpose(values.pop("purpose")), **values).standard_normal(10_000)

    # 5 standard errors of 1 / sqrt(10,000)
    assert abs(np.corrcoef(drawn(4), drawn(5))[0, 1]) < 0.05
