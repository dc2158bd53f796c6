"""`task: {kind: function}`: a Python function of one's own, of a vector or of named parameters.

    task: {kind: function, function: "my_model:cost", dimension: 40, initial: 1.0}

The function gets float64[dimension] (or, with `parameters`, one keyword each), the `arguments` and, where it has a
parameter `seed`, a whole number that is the same for both halves of a mirrored pair; it returns a number. With `batch:
K` it gets float64[<= K, dimension] and returns float64[<= K], `seed` is then an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hpc_es.config.foreign import source_hash
from hpc_es.config.options import Natural, option, options
from hpc_es.core.acting import Policy
from hpc_es.core.data import Float64
from hpc_es.core.errors import Problems
from hpc_es.core.interfaces import Offers, Searched
from hpc_es.core.keys import Keys
from hpc_es.core.places import config_directory
from hpc_es.tasks.functions.bounds import Bounds
from hpc_es.tasks.functions.calls import Calls
from hpc_es.tasks.functions.evaluator import Evaluator
from hpc_es.tasks.functions.initial import initial_values
from hpc_es.tasks.functions.options import Problem, Search
from hpc_es.tasks.functions.problem import ObjectiveProblem, first_values
from hpc_es.tasks.functions.resolve import resolve

OFFERS = Offers(problems=("vectors",), values=True, any_chunks=True)


@options
class Options(Search):
    """`task:` with `kind: function`."""

    kind: Literal["function"] = option("the task's module in hpc_es/tasks", "function")
    function: str = option("module:function, such as my_model:cost; beside the config or in the current directory")
    arguments: Mapping[str, Any] = option("further keywords of every call", default_factory=dict)
    batch: Natural = option("vectors of a call, as an array; 0: one vector a call", 0)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that no single field shows: (key, text)."""
        yield from super().problems()
        if self.batch and self.parameters:
            yield "batch", f"is {self.batch}, but named parameters come one vector at a time: expected 0"
        both = set(self.arguments) & set(self.parameters or {})
        if both:
            yield "arguments", f"has {', '.join(sorted(both))}, which is a parameter that is searched: remove it there"


class VectorTask:
    """A task whose problem is an objective."""

    spaces = None

    def __init__(
        self, name: str, search: Search, first: Float64 | Bounds, evaluator: Evaluator, batch: int = 0
    ) -> None:
        self.name, self._search, self._first, self._evaluator, self._batch = name, search, first, evaluator, batch

    def problem(self, searched: Searched, policy: Policy | None, keys: Keys, unit: int) -> ObjectiveProblem:
        """Return the objective."""
        return ObjectiveProblem(
            self._search, self._search.coordinates(), self._first, self._evaluator, keys, self._batch
        )

    def close(self) -> None:
        """End what evaluates."""
        self._evaluator.close()


def first_vector(search: Search) -> Float64 | Bounds:
    """Return what the objective sees first, or between which search vectors to draw it; ConfigError."""
    return first_values(search, initial_values(search, config_directory()))


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the function's module, or of its package; it is not imported."""
    return {section["function"]: source_hash(section["function"])}


def build(options: Options, repetition: int = 0) -> VectorTask:
    """Return the task of `task: {kind: function}`; ConfigError where the function cannot be called."""
    problems = Problems()
    with problems.collect():
        objective = resolve(options.function, options.arguments, tuple(options.parameters or ()))
    with problems.collect():
        first = first_vector(options)
    problems.raise_any()
    calls = Calls(objective, options.batch > 0, options.timeout_seconds)
    return VectorTask(options.function, options, first, calls, options.batch)
