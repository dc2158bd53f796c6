"""What `minimize` and `Strategy` have in common: a search for a vector whose function is the caller's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_es.config.kinds import module
from hpc_es.config.sections import Config
from hpc_es.core.data import row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.training.build import Parts
from hpc_es.training.misfits import needs, of_parts

ALGORITHM = "cma_es"  # where the caller names none
OUTSIDE = "the_caller:evaluates"  # in place of a function, of which there is no name


def parts_of(config: Config, task: Any, chunk_size: int) -> Parts:
    """Return the parts of a search by a VectorTask in chunks of so many jobs; ConfigError where they do not fit."""
    wanted, keys = needs(config), Keys(config.seed)
    if wanted.searches != "vectors":
        text = f"is {config.algorithm.kind!r}, which searches {wanted.searches}: expected one of vectors"
        raise ConfigError([("algorithm", text)])
    problem: Any = task.problem("vectors", None, keys, chunk_size)
    if problems := list(of_parts(config, task, None, problem)):
        raise ConfigError(problems)
    noise = None
    if wanted.noise:
        noise = module("noise", config.noise.kind).build(config.noise, keys, problem.size, None)
    build = module("algorithms", config.algorithm.kind).build
    algorithm = build(config.algorithm, problem, noise, keys, chunk_size)
    row = row_dtype((*problem.fields, *wanted.fields))
    return Parts(task, None, problem, noise, algorithm, row, wanted.growing)


def vector_options(x0: npt.ArrayLike, bounds: tuple[Any, Any] | None, keep: str) -> dict[str, Any]:
    """Return the options of a task that begins with this vector; ConfigError."""
    first = np.asarray(x0, np.float64)
    if first.ndim != 1 or not first.size:
        raise ConfigError([("x0", f"expected a vector of numbers, found an array of shape {first.shape}")])
    low, high = bounds or (None, None)
    limits = {"low": _listed(low), "high": _listed(high), "keep": keep}
    return {
        "dimension": first.size,
        "initial": first.tolist(),
        "bounds": limits,
        "record_evaluations": False,
        "journal": False,
    }


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
