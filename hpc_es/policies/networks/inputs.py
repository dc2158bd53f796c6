"""What a network does to its observations first."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_es.core.data import Float32, Normaliser


def normalise(observations: Float32, normaliser: Normaliser) -> Float32:
    """clip((observations - mean) / standard deviation, -clip, clip), in place."""
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
