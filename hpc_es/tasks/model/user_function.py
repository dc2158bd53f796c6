"""The call of the function of the user that returns a model or an engine."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Iterator
from typing import Any

from hpc_es.config.registry import import_function
from hpc_es.core.data import ConfigData
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.policies.network import restored_session, seed_generators

KEY = "task.model"
# Of the libraries of PyTorch, which read them when they are loaded. Without the first one products
# of MKL may differ in their last bits between addresses of the operands and between processors of
# one node.
SETTINGS = {"MKL_CBWR": "AUTO,STRICT", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def prepare_libraries() -> None:
    """Set what PyTorch needs for equal bits, before code of the user imports it."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def call_of_user(name: str, keywords: ConfigData) -> Any:
    """Return the result of the function with this name, with generators seeded for it.

    Raises:
        ConfigError: there is no such function, or it fails.
    """
    function = import_function(name, KEY, "my_model:make")
    with restored_session(), _seeded_torch():
        seed_generators(0)
        try:
            return function(**copy.deepcopy(keywords))
        except ConfigError:
            raise
        except Exception as error:  # of the user's code
            raise ConfigError([(KEY, f"{name} fails: {failure_from_error(error).text}")]) from error


@contextlib.contextmanager
def _seeded_torch() -> Iterator[None]:
    """Seed the generators of PyTorch, if code of the user's has imported it, and restore them."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "random"):
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
