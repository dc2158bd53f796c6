"""What `minimize` and `Strategy` have in common: a search for a vector whose function is the caller's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.core.data import Float64, row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.training.build import Parts
from hpc_es.training.misfits import needs, of_problem

ALGORITHM = "cma_es"  # where the caller names none
Region = tuple[npt.ArrayLike, npt.ArrayLike]  # low and high, vectors or one and a number
OUTSIDE = "the_caller:evaluates"  # in place of a function, of which there is no name


def parts_of(config: Config, task: Any, chunk_size: int) -> Parts:
    """Return the parts of a search by a VectorTask in chunks of so many jobs; ConfigError where they do not fit."""
    wanted, keys = needs(config), Keys(config.seed)
    if wanted.searches != "vectors":
        text = f"is {config.algorithm.kind!r}, which searches {wanted.searches}: expected one of vectors"
        raise ConfigError([("algorithm", text)])
    problem: Any = task.problem("vectors", None, keys, chunk_size)
    if problems := list(of_problem(config, problem)):
        raise ConfigError(problems)
    noise = None
    if wanted.noise:
        noise = module("noise", config.noise.kind).build(config.noise, keys, problem.layout, None)
    build = module("algorithms", config.algorithm.kind).build
    algorithm = build(config.algorithm, problem, noise, keys, chunk_size)
    row = row_dtype((*problem.columns, *wanted.columns))
    return Parts(task, None, problem, noise, algorithm, row, chunk_size, problem.cutting, wanted.growing)


def vector_options(
    x0: npt.ArrayLike | None, region: Region | None, bounds: tuple[Any, Any] | None, keep: str
) -> dict[str, Any]:
    """Return the options of a task that begins with this vector, or in this region; ConfigError."""
    if (x0 is None) == (region is None):
        raise ConfigError([("x0", f"expected x0, or region, found {'neither' if x0 is None else 'both'}")])
    low, high = bounds or (None, None)
    limits = {"low": _listed(low), "high": _listed(high), "keep": keep}
    return {
        **(_at(x0) if region is None else _between(region)),
        "bounds": limits,
        "record_evaluations": False,
        "journal": False,
    }


def _at(x0: Any) -> dict[str, Any]:
    first = np.asarray(x0, np.float64)
    _require_vector("x0", first)
    return {"dimension": first.size, "initial": first.tolist()}


def _between(region: Region) -> dict[str, Any]:
    try:
        low, high = np.broadcast_arrays(*(np.asarray(side, np.float64) for side in region))
    except ValueError as error:
        raise ConfigError([("region", f"expected low and high of one length: {error}")]) from error
    _require_vector("region", low)
    sides = {"low": low.tolist(), "high": high.tolist()}
    return {"dimension": low.size, "initial": "random", "initial_region": sides}


def _require_vector(name: str, values: Float64) -> None:
    if values.ndim != 1 or not values.size:
        raise ConfigError([(name, f"expected a vector of numbers, found an array of shape {values.shape}")])


def _listed(side: Any) -> Any:
    return side.tolist() if isinstance(side, np.ndarray) else list(side) if isinstance(side, tuple) else side


def algorithm_options(kind: str, sigma0: float | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm's section; plain names that only its optimizer has go there."""
    fields = {each.name: each for each in dataclasses.fields(module("algorithms", kind).Options)}
    section: dict[str, Any] = {"kind": kind}
    if sigma0 is not None:
        section["sigma"] = float(sigma0)
    optimizer = {}
    for name, value in options.items():
        inner = name.removeprefix("optimizer_")
        if name not in fields and "optimizer" in fields:
            optimizer[inner] = value
        else:
            section[name] = value
    if optimizer:
        section["optimizer"] = {**dict(section.get("optimizer", {})), **optimizer}
    return section
