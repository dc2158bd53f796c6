"""Runs on disk, for commands of packages: checkpoints, results, trained policies, and files that
are replaced as a whole.

Importing this module imports h5py.
"""

from __future__ import annotations

from hpc_es.config.resolved import plain_data
from hpc_es.storage.checkpoint import Snapshot
from hpc_es.storage.checkpoint import load as load_checkpoint
from hpc_es.storage.checkpoint_directory import find as find_checkpoint
from hpc_es.storage.files import write_text, written
from hpc_es.storage.results import Result, mean, read_results, require_run
from hpc_es.trained.policy import ROWS
from hpc_es.trained.stored import StoredPolicy, read_policy

__all__ = [
    "ROWS",
    "Result",
    "Snapshot",
    "StoredPolicy",
    "find_checkpoint",
    "load_checkpoint",
    "mean",
    "plain_data",
    "read_policy",
    "read_results",
    "require_run",
    "write_text",
    "written",
]
