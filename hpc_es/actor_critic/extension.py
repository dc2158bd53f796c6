"""What the package of the actor-critic gives hpc_es."""

from __future__ import annotations

from hpc_es.core.extensions import Extension

EXTENSION = Extension(algorithms={"actor_critic": "hpc_es.actor_critic.algorithm"})
