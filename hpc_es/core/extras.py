"""Packages that only some runs need: which extra of hpc_es brings each, and what to say where one is missing."""

from __future__ import annotations

import importlib.util

from hpc_es.core.errors import UserError

EXTRAS = {  # package as it is imported: extra as setup.cfg has it
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "numba": "programs",
    "optuna": "tune",
    "gym": "gym",
    "shimmy": "gym",
    "imageio": "video",
    "imageio_ffmpeg": "video",
    "pygame": "video",
    "mpich": "mpi",
    "jax": "jax",
    "jaxlib": "jax",
    "gymnax": "jax",
    "brax": "jax",
    "cma": "oracles",
    "cocoex": "oracles",
}


def lacking(*packages: str) -> str:
    """Return "PACKAGE, which is not installed: pip install 'hpc_es[EXTRA]'" of the first that is, else ""."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package}, which is not installed: {remedy(package)}"
    return ""


def require(what: str, *packages: str, otherwise: str = "") -> None:
    """Raise UserError, which says that `what` needs the package, unless all of them are installed.

    `otherwise` is a second way out, such as "or choose a .gif".
    """
    if text := lacking(*packages):
        raise UserError(f"{what} needs {text}" + (f", {otherwise}" if otherwise else ""))


def remedy(package: str) -> str:
    """Return the line that installs a package of EXTRAS."""
    return f"pip install 'hpc_es[{EXTRAS[package]}]'"


def missing_one(error: BaseException | None) -> str | None:
    """Return the package of EXTRAS that an import did not find, from its exception or what caused it."""
    while error is not None:
        package = str(error.name).partition(".")[0] if isinstance(error, ImportError) else ""
        if package in EXTRAS:
            return package
        error = error.__cause__ or error.__context__
    return None
