"""`task: {kind: function}`: a Python function of a vector or of named parameters.

    task: {kind: function, function: "my_model:cost", dimension: 40, initial: 1.0}

The function gets float64[dimension] (with `parameters`: a keyword for each of them, of its type),
the keywords in `arguments` and, if it has a parameter `seed`, a whole number that is the same for
both candidates of an antithetic pair. It returns a number, or a mapping with objectives,
constraints, measures or metrics that the task declares: see `results.py`. With `batch: K`
it gets float64[k, dimension], k <= K, and int64[k] seeds, and returns float64[k].
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hpc_es.config.options import Natural, option, options
from hpc_es.config.registry import import_function
from hpc_es.config.source_code import source_hash
from hpc_es.core.data import ConfigData
from hpc_es.core.declarations import Offers
from hpc_es.core.errors import Problems
from hpc_es.tasks.functions.initial_points import initial_points
from hpc_es.tasks.functions.initial_vector import initial_vector
from hpc_es.tasks.functions.objective_task import ObjectiveTask
from hpc_es.tasks.functions.options import (
    OF_CONSTRAINTS,
    ConfigProblem,
    SearchOptions,
    offers_of_search,
    returned_quantities,
)
from hpc_es.tasks.functions.python_evaluator import KEY, PythonEvaluator, objective

OFFERS = Offers(
    problems=("vectors",),
    values=True,
    any_chunks=True,
    metrics=OF_CONSTRAINTS,
    noisy=True,
    checked_call="function",
)


@options
class Options(SearchOptions):
    """`task:` with `kind: function`."""

    kind: Literal["function"] = option("name of the task", "function")
    function: str = option(
        "module:function, such as my_model:cost, in the config's or the current directory"
    )
    arguments: ConfigData = option("further keywords of every call", default_factory=dict)
    batch: Natural = option(
        "maximum number of vectors per call, passed as an array; 0: one vector per call", 0
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield (key, text) for each mistake that involves several options."""
        yield from super().problems()
        if self.batch and self.parameters:
            yield (
                "batch",
                f"is {self.batch}, but named parameters are passed one vector at a time: expected 0",
            )
        if self.batch and self.close_at is not None:
            yield "batch", f"is {self.batch}, but close_at gives up single evaluations: expected 0"
        both = set(self.arguments) & set(self.parameters or {})
        if both:
            yield (
                "arguments",
                f"has {', '.join(sorted(both))}, which is also in task.parameters: remove it from one",
            )


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    return offers_of_search(OFFERS, options)


def sources(section: ConfigData, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the function's module or package, which is not imported."""
    return {section["function"]: source_hash(section["function"])}


def build(options: Options, repetition: int = 0) -> ObjectiveTask:
    """Return the task.

    Raises:
        ConfigError: the function cannot be imported or does not accept its arguments.
    """
    problems = Problems()
    with problems.collect():
        function, scales = import_function(options.function, KEY), options.coordinates().scales
        function_objective = objective(function, options.arguments, scales, options.function)
    with problems.collect():
        initial = initial_vector(options)
    with problems.collect():
        points = initial_points(options)
    problems.raise_any()
    returned = returned_quantities(options)
    evaluator = PythonEvaluator(
        function_objective, options.batch > 0, options.timeout_seconds, returned
    )
    return ObjectiveTask(
        options.function,
        options,
        initial,
        evaluator=evaluator,
        batch=options.batch,
        points=points,
    )
