"""Optional packages: the extra of hpc_es that installs each, and messages about missing ones."""

from __future__ import annotations

import importlib.util

from hpc_es.core.errors import UserError

EXTRAS = {  # import name of the package: name of the extra in setup.cfg
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "ale_py": "atari",
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


def missing_text(*packages: str) -> str:
    """Return "PACKAGE, which is not installed: pip install ..." for the first missing package; "" if there is none."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package}, which is not installed: {install_command(package)}"
    return ""


def require(purpose: str, *packages: str, otherwise: str = "") -> None:
    """Raise UserError if a package is not installed, saying that `purpose` needs it.

    `otherwise` is an alternative remedy, such as "or choose a .gif".
    """
    if text := missing_text(*packages):
        raise UserError(f"{purpose} needs {text}" + (f", {otherwise}" if otherwise else ""))


def install_command(package: str) -> str:
    """Return the command that installs a package of EXTRAS."""
    return f"pip install 'hpc_es[{EXTRAS[package]}]'"


def missing_package(error: BaseException | None) -> str | None:
    """Return the package of EXTRAS whose import failed, given the exception or one that it caused; None if none is."""
    while error is not None:
        package = str(error.name).partition(".")[0] if isinstance(error, ImportError) else ""
        if package in EXTRAS:
            return package
        error = error.__cause__ or error.__context__
    return None
