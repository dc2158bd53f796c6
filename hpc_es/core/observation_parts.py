"""Observations that are a dict or a tuple of arrays, possibly nested: their parts.

Everywhere between the environment and the policy such an observation is one vector: the parts one
after the other, as `gymnasium.spaces.utils.flatten` returns them. Networks that take the parts cut
the vector again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpc_es.core.arrays import Array, Float32, form_of
from hpc_es.core.errors import ReturnedValueError
from hpc_es.core.spaces import ObservationSpec

T = TypeVar("T")
Key: TypeAlias = str | int  # of a dict, or the position in a tuple
Parts: TypeAlias = "ObservationSpec | Mapping[str | int, Parts] | tuple[Parts, ...]"


@dataclass(frozen=True)
class Choices(ObservationSpec):
    """A part that holds whole numbers of small ranges, flattened one-hot.

    Attributes:
        shape: () for a Discrete space.
        dtype: of the whole numbers.
        counts: number of choices of each element, in order.
        starts: smallest choice of each element.
    """

    counts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def one_hot(self, values: Array) -> Float32:
        """Return whole numbers [..., elements] as float32[..., sum(counts)].

        Raises:
            ValueError: one of them is no choice.
        """
        chosen = values.astype(np.int64) - np.array(self.starts)
        if ((chosen < 0) | (chosen >= np.array(self.counts))).any():
            raise ReturnedValueError(
                f"expected choices {list(self.starts)} + 0 .. {list(self.counts)} - 1, "
                f"found {values.tolist()}"
            )
        firsts = np.cumsum((0, *self.counts[:-1]))
        result = np.zeros((*values.shape[:-1], sum(self.counts)), np.float32)
        np.put_along_axis(result, chosen + firsts, 1.0, axis=-1)
        return result


@dataclass(frozen=True)
class PartOps:
    """The functions of a library of arrays that cut a vector into parts."""

    argmax: Callable[[Any], Any]  # of [choices]
    stack: Callable[[Sequence[Any]], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    cast: Callable[[Any, np.dtype[np.generic]], Any]


@dataclass(frozen=True)
class Part:
    """A part of an observation, and its place in the vector."""

    path: tuple[Key, ...]  # keys from the outermost dict or tuple
    spec: ObservationSpec
    start: int

    @property
    def width(self) -> int:
        """Number of elements of the vector."""
        return sum(self.spec.counts) if isinstance(self.spec, Choices) else self.spec.size

    @property
    def place(self) -> slice:
        """The elements of the vector."""
        return slice(self.start, self.start + self.width)

    @property
    def is_whole(self) -> bool:
        """Whether the part has whole numbers."""
        return self.spec.dtype.kind not in "f"

    @property
    def is_image(self) -> bool:
        """Whether it has three axes, or two and pixels."""
        axes = len(self.spec.shape)
        return axes >= 3 or (axes == 2 and self.spec.dtype == np.uint8)

    @property
    def name(self) -> str:
        """The keys as text, such as "hand/joints"."""
        return "/".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{self.name} {self.spec.dtype}{list(self.spec.shape)}"

    def vector(self, observation: object, lead: tuple[int, ...] | None) -> Float32:
        """Return the part of an observation as float32[*lead, width].

        Args:
            observation: with all parts, each [*lead, *shape].
            lead: None: of any shape.

        Raises:
            ValueError: the part is missing or something else.
        """
        value = self._value(observation)
        try:
            array = self.spec.array(value)  # type: ignore[arg-type]
            axes = array.ndim - len(self.spec.shape)
            if array.shape[max(axes, 0) :] != self.spec.shape or lead not in (
                None,
                array.shape[: max(axes, 0)],
            ):
                shape = [*(lead or ()), *self.spec.shape]
                raise ReturnedValueError(
                    f"expected {self.spec.dtype}{shape}, found {form_of(value)}"
                )
            flat = array.reshape(*array.shape[:axes], self.spec.size)
            is_chosen = isinstance(self.spec, Choices)
            return self.spec.one_hot(flat) if is_chosen else flat.astype(np.float32)  # type: ignore[attr-defined]
        except ReturnedValueError as error:
            raise ReturnedValueError(f"{self.name!r} of the observation: {error}") from error

    def array(self, vector: Any, ops: PartOps, lead: tuple[int, ...]) -> Any:
        """Return the part, [*lead, *shape] in its dtype, from the vector, [observations].

        Args:
            vector: an array of the library of `ops`.
            lead: further first axes of 1.
        """
        values, spec = vector[self.place], self.spec
        if isinstance(spec, Choices):
            ends = np.cumsum(spec.counts).tolist()
            chosen = [
                ops.argmax(values[end - count : end]) + start
                for end, count, start in zip(ends, spec.counts, spec.starts, strict=True)
            ]
            values = ops.stack(chosen)
        return ops.cast(ops.reshape(values, (*lead, *spec.shape)), spec.dtype)

    def _value(self, observation: object) -> object:
        for key in self.path:
            is_dict = isinstance(key, str) or isinstance(observation, Mapping)
            try:
                if not isinstance(observation, Mapping if is_dict else tuple | list):
                    raise TypeError
                observation = observation[key]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                raise ReturnedValueError(
                    f"expected an observation with the part {self.name!r}, found {_keys_of(observation)}"
                ) from None
        return observation


def _keys_of(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(map(repr, value))}"
    return form_of(value)


@dataclass(frozen=True)
class StructuredObservations(ObservationSpec):
    """Observations of a Dict or Tuple space. Make it with `StructuredObservations.of`.

    `shape` and `dtype` are those of the vector, float32[observations]. `array`, `require` and
    `batch` take observations as the environment gives them, or vectors.

    Attributes:
        parts: the structure, with the shape and dtype of each part: a dict or tuple of
            `ObservationSpec`. Parts of fractions are float32, those of whole numbers keep their
            dtype.

    Examples:
        >>> import numpy as np
        >>> from hpc_es.extend import ObservationSpec, StructuredObservations
        >>> number = ObservationSpec(())
        >>> spec = StructuredObservations.of({"at": ObservationSpec((2,)), "speed": number})
        >>> spec.require({"at": [1.0, 2.0], "speed": 3.0})
        array([1., 2., 3.], dtype=float32)
    """

    parts: Parts = field(default=())

    @staticmethod
    def of(parts: Parts) -> StructuredObservations:
        """Return the observations with these parts."""
        width = sum(part.width for part in _numbered(parts))
        return StructuredObservations((width,), np.dtype(np.float32), parts)

    @cached_property
    def leaves(self) -> tuple[Part, ...]:
        """The parts in the order of the vector."""
        return tuple(_numbered(self.parts))

    def mapped(self, function: Callable[[Part], T]) -> Any:
        """Return the structure with the results of a function of each part."""
        results = iter([function(part) for part in self.leaves])
        return _filled(self.parts, results)

    def split(self, vector: Any, ops: PartOps, lead: tuple[int, ...] = ()) -> Any:
        """Return an observation as a dict or tuple of arrays from a vector, [observations].

        Args:
            vector: an array of a library.
            ops: functions of this library.
            lead: further first axes of 1 of each part.
        """
        return self.mapped(lambda part: part.array(vector, ops, lead))

    def array(self, observations: npt.ArrayLike) -> Array:
        """Return observations as vectors; see `ObservationSpec.array`."""
        if isinstance(observations, np.ndarray):
            return super().array(observations)
        return self._vector(observations, None)

    def _required(self, values: object, shape: tuple[int, ...], name: str) -> Array:
        if isinstance(values, np.ndarray):
            return super()._required(values, shape, name)
        return self._vector(values, shape[:-1])

    def _vector(self, observation: object, lead: tuple[int, ...] | None) -> Array:
        vectors = []
        for part in self.leaves:
            vectors.append(part.vector(observation, lead))
            lead = vectors[0].shape[:-1]
        return np.concatenate(vectors, axis=-1)

    def __str__(self) -> str:
        return f"{self.size} ({', '.join(map(str, self.leaves))})"


def _numbered(parts: Parts) -> Iterator[Part]:
    """Yield the parts in order, each after the one before."""
    start = 0
    for path, spec in _flattened((), parts):
        part = Part(path, spec, start)
        yield part
        start += part.width


def _flattened(
    path: tuple[Key, ...], parts: Parts
) -> Iterator[tuple[tuple[Key, ...], ObservationSpec]]:
    if isinstance(parts, ObservationSpec):
        yield path, parts
        return
    items: Any = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
    for key, inner in items:
        yield from _flattened((*path, key), inner)


def _filled(parts: Parts, results: Iterator[T]) -> Any:
    if isinstance(parts, ObservationSpec):
        return next(results)
    if isinstance(parts, Mapping):
        return {key: _filled(inner, results) for key, inner in parts.items()}
    return tuple(_filled(inner, results) for inner in parts)


def parts_of(spec: ObservationSpec) -> tuple[Part, ...]:
    """Return the parts of observations in the order of the vector, () if they are one array."""
    return spec.leaves if isinstance(spec, StructuredObservations) else ()


def whole_elements(spec: ObservationSpec) -> list[int]:
    """Return the elements of the vector that belong to parts of whole numbers."""
    places = [range(spec.size)[part.place] for part in parts_of(spec) if part.is_whole]
    return [element for place in places for element in place]


def is_key(key: Hashable) -> bool:
    """Whether a key of a dict can name a part."""
    return isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool))
