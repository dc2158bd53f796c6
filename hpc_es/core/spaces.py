"""Observations and actions of a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpc_es.core.arrays import Array, Float32, _as_array, form_of
from hpc_es.core.errors import ReturnedValueError


@dataclass(frozen=True)
class Box:
    """Continuous actions between `low` and `high`, which may be infinite."""

    low: Float32  # float32[actions]
    high: Float32  # float32[actions]


@dataclass(frozen=True)
class Discrete:
    """Actions start .. start + n - 1."""

    n: int
    start: int = 0

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of discrete actions: element i is one of 0 .. counts[i] - 1."""

    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.counts)})"


Actions = Box | Discrete | MultiDiscrete  # an action space


@dataclass(frozen=True)
class ObservationSpec:
    """The shape and dtype of the observations that a policy gets.

    Integer arrays of two or more axes, such as images, keep the dtype of the environment. All other
    observations are float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic] = field(default_factory=lambda: np.dtype(np.float32))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_flat(self) -> bool:
        """Whether observations are vectors."""
        return len(self.shape) == 1

    @property
    def statistics(self) -> int:
        """Number of normalisation statistics.

        There is one per element of vectors, and one per channel of images. Channels are the last
        axis; an image of two axes has one channel.
        """
        if self.is_flat:
            return self.size
        return 1 if self.is_integer and len(self.shape) == 2 else self.shape[-1]

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer type."""
        return self.dtype.kind in "iu"

    @property
    def castable(self) -> str:
        """Characters (`dtype.char`) of the dtypes all of whose values this dtype holds.

        Floats hold all numbers, apart from rounding.
        """
        if self.is_integer:
            return "".join(
                char for char in np.typecodes["AllInteger"] + "?" if np.can_cast(char, self.dtype)
            )
        return np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"

    def array(self, observations: npt.ArrayLike) -> Array:
        """Return observations in this dtype.

        Args:
            observations: numbers, [..., *shape].

        Returns:
            The array, [..., *shape].

        Raises:
            ValueError: they are no numbers, or numbers that the dtype does not hold.
        """
        array = _as_array(observations)
        if array is None or not self._holds(array):
            raise ReturnedValueError(
                f"expected observations of dtype {self.dtype}, found {form_of(observations)}"
            )
        return np.asarray(array, self.dtype)

    def require(self, observation: object) -> Array:
        """Return one observation as an array.

        Args:
            observation: what an environment has returned.

        Returns:
            The array, [*shape], in the dtype of the observation.

        Raises:
            ValueError: it has another shape, or values that the dtype of the spec does not hold.
        """
        return self._required(observation, self.shape, "an observation")

    def batch(self, observations: object, count: int) -> Array:
        """Return several observations as one array; like `require` otherwise.

        Args:
            observations: what environments have returned.
            count: the number expected.

        Returns:
            The array, [count, *shape].

        Raises:
            ValueError: as in `require`.
        """
        return self._required(observations, (count, *self.shape), "observations")

    def _required(self, values: object, shape: tuple[int, ...], name: str) -> Array:
        array = _as_array(values)
        if array is None or array.shape != shape or not self._holds(array):
            raise ReturnedValueError(
                f"expected {name} {self.dtype}{list(shape)}, found {form_of(values)}"
            )
        return array

    def _holds(self, array: Array) -> bool:
        """Whether this dtype holds the values, apart from rounding.

        Infinity stands for larger floats.
        """
        if array.dtype.char in self.castable or not array.size:
            return True
        if not self.is_integer or array.dtype.kind not in "iu":
            return False
        limits = np.iinfo(self.dtype)  # type: ignore[type-var]
        return bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)

    def __str__(self) -> str:
        return str(self.size) if self.is_flat else f"{self.dtype}{list(self.shape)}"


def flat_observations(width: int) -> ObservationSpec:
    """Return the spec of observations that are vectors, float32[width]."""
    return ObservationSpec((width,))


@dataclass(frozen=True)
class Spaces:
    """Observations and actions of a policy."""

    observations: ObservationSpec
    actions: Actions
