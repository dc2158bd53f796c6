"""`hpc_es.load_model`: the parameters that a run has trained for a task `model`.

model = load_model("runs/digits"); score(model.parameters, batch)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.config.options import build_kind
from hpc_es.config.registry import within_config_directory
from hpc_es.config.schema import Config
from hpc_es.core.data import (
    Arrays,
)
from hpc_es.core.errors import (
    CheckpointError,
    exits_as_errors,
)
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.paths import argument
from hpc_es.trained.stored import read_evaluated
from hpc_es.trained.theta import Selected, Which, selected

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class LoadedModel:
    """The trained parameters of a task `model`."""

    # the first argument of score: a tree of NumPy arrays, or the Keras model with its weights
    parameters: Any
    arrays: Arrays  # the parameters by name, float32[*shape]
    config: Config  # of the training run
    which: Selected  # "best", "last" or the name of a member
    generation: int  # number of finished generations


@restored_generators()
@exits_as_errors()
def load_model(
    path: str | Path, which: Which | None = None, trust: bool = False, *, member: str | None = None
) -> LoadedModel:
    """Load the trained parameters of a run of `task: {kind: model}`.

    The function of the user is imported and called, as in training.

    Args:
        path: of the run directory or of one of its checkpoints.
        which: as in `load_policy`.
        trust: import custom code even if its source has changed since the training.
        member: in place of `which`, the name of a member of the front or archive.

    Raises:
        CheckpointError: there is no valid checkpoint, or it has no model.
        UserError: code has changed and is not trusted.
        ConfigError: the model cannot be made.

    Examples:
        >>> model = hpc_es.load_model("runs/digits")  # doctest: +SKIP
        >>> score(model.parameters, batch)  # doctest: +SKIP
    """
    source = read_evaluated(argument(path, "path"), selected(which, member), trust)
    if source.config.policy is not None:
        raise CheckpointError(
            f"{source.path}: holds a policy and no model: hpc_es.load_policy loads it"
        )
    with within_config_directory(source.config.directory):
        task = build_kind("tasks", source.config.task)
    layout = task.model.layout
    if layout.size != source.theta.size:
        raise CheckpointError(
            f"{source.path}: it has {source.theta.size} parameters, but {task.name} returns a "
            f"model with {layout.size}; has the model changed since the training?"
        )
    arrays = {name: array.copy() for name, array in layout.split(source.theta).items()}
    return LoadedModel(
        task.restored(source.theta),
        arrays,
        source.config,
        source.which,
        source.generation,
    )
