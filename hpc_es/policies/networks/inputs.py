"""What a network does to its observations first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_es.core.data import Float32, Normaliser, Spaces, flat_observations
from hpc_es.core.errors import ConfigError


def require_flat(spaces: Spaces, kind: str, parameters: Callable[[Spaces], int]) -> None:
    """Raise ConfigError if observations are not flat; `parameters` returns the number of parameters for flat ones."""
    observations = spaces.observations
    if observations.is_flat:
        return
    count = parameters(Spaces(flat_observations(observations.size), spaces.actions))
    text = (
        f"{kind!r} takes flat observations, found {observations}: use a policy of your own that takes this shape, or "
    )
    text += (
        f"add 'gymnasium.wrappers:FlattenObservation' to task.wrappers, which makes {observations.size:,} observations"
    )
    text += f" and a policy of {count:,} parameters"
    if len(observations.shape) == 3:
        text += "; fewer after 'gymnasium.wrappers:GrayscaleObservation' and "
        text += "{'gymnasium.wrappers:ResizeObservation': {shape: [42, 42]}}"
    raise ConfigError([("policy.kind", text)])


def normalise(observations: Float32, normaliser: Normaliser) -> Float32:
    """Return clip((observations - mean) / standard deviation, -clip, clip) of float32[rows, *shape], in place."""
    mean, deviation, clip = normaliser
    observations -= mean
    observations /= deviation
    return np.clip(observations, -clip, clip, out=observations)


def normalised(xp: Any, observations: Any, normaliser: tuple[Any, Any, Any]) -> Any:
    """Return the same over an array namespace; mean, deviation and clip may be traced arrays."""
    mean, deviation, clip = normaliser
    return xp.minimum(xp.maximum((observations - mean) / deviation, -clip), clip)


def normalise_in_tensorflow(tf: Any, observations: Any, normaliser: tuple[Any, Any, Any]) -> Any:
    """Return the same of tensors."""
    mean, deviation, clip = normaliser
    return tf.clip_by_value((observations - mean) / deviation, -clip, clip)
