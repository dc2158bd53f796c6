"""The archive of novelty search: behaviours, and how far others are from it (Lehman & Stanley 2011)."""

from __future__ import annotations

import numpy as np

from hpc_es.core.data import Array, Float64


def novelty(behaviour: Array, archive: Array, neighbours: int) -> float:
    """Return the mean distance of a behaviour, [numbers], to its nearest entries, [entries, numbers].

    To all of them where there are fewer than `neighbours`; 0 where there is none.
    """
    if not len(archive):
        return 0.0
    differences = archive.astype(np.float64) - behaviour.astype(np.float64)
    distances = np.sqrt(np.square(differences).sum(axis=1))
    distances.sort()
    return float(distances[:neighbours].mean())


def novelties(behaviours: Array, archive: Array, neighbours: int) -> Float64:
    """Return the novelty of each behaviour, float64[behaviours]; each is computed alone, whatever its company."""
    return np.array([novelty(each, archive, neighbours) for each in behaviours], np.float64)


def extended(archive: Array, entries: Array, most: int | None) -> Array:
    """Return the archive with these entries behind it; of more than `most` only the newest."""
    longer = np.concatenate([archive, entries])
    return longer if most is None else longer[-most:]


def chances(novelty_of_each: Float64) -> Float64:
    """Return the probability of each to be chosen: its share of all novelty, or the same where there is none."""
    total = novelty_of_each.sum()
    count = len(novelty_of_each)
    return novelty_of_each / total if total > 0 else np.full(count, 1 / count)
