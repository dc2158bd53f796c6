"""Load trained models: `model = load_model("runs/digits"); score(model.parameters, batch)`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.config.registry import module, within_config_directory
from hpc_es.config.schema import Config
from hpc_es.core.data import Arrays
from hpc_es.core.errors import CheckpointError
from hpc_es.report.saved_policy import read_evaluated

if TYPE_CHECKING:
    from hpc_es.report.saved_policy import Which


@dataclass(frozen=True)
class LoadedModel:
    """The trained parameters of a task `model`."""

    parameters: Any  # the first argument of score: a tree of NumPy arrays, or the Keras model with its weights
    arrays: Arrays  # the parameters by name, float32[*shape]
    config: Config  # of the training run
    which: Which  # "best" or "last"
    generation: int  # number of finished generations


def load_model(path: str | Path, which: Which | None = None, trust: bool = False) -> LoadedModel:
    """Load the trained parameters of a run of `task: {kind: model}`, or of one of its checkpoints.

    The function of the user is imported and called, as in training. `which` and `trust` are those of `load_policy`.

    Raises CheckpointError without a valid checkpoint or model; UserError for untrusted code that has changed;
    ConfigError if the model cannot be made.
    """
    source = read_evaluated(Path(path), which, trust)
    if source.config.policy is not None:
        raise CheckpointError(f"{source.path}: holds a policy and no model: hpc_es.load_policy loads it")
    with within_config_directory(source.config.directory):
        task = module("tasks", source.config.task.kind).build(source.config.task)
    layout = task.model.layout
    if layout.size != source.theta.size:
        text = f"it has {source.theta.size} parameters, but {task.name} returns a model with {layout.size}"
        raise CheckpointError(f"{source.path}: {text}; has the model changed since the training?")
    arrays = {name: array.copy() for name, array in layout.split(source.theta).items()}
    return LoadedModel(
        task.model.parameters.restored(source.theta), arrays, source.config, source.which, source.generation
    )
