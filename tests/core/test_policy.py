"""The attributes that a policy may have."""

from __future__ import annotations

from typing import Any

from hpc_es.core.policy import Traits


class Plain:
    """A policy of the earlier contract, which declares nothing."""


class Compiled:
    rows_are_independent = True

    def __init__(self) -> None:
        self.compiled_by, self.candidates_per_call = "jax", 8


def test_attributes_that_a_policy_lacks_have_their_defaults() -> None:
    plain: Any = Plain()
    compiled: Any = Compiled()
    assert Traits.of(plain) == Traits() == Traits(False, False, None, 1)
    assert Traits.of(compiled) == Traits(True, False, "jax", 8)
