"""`algorithm: {kind: actor_critic}`: advantage actor-critic with memory."""

from hpc_es.algorithms.actor_critic.algorithm import NEEDS, Options, build, incompatibilities

__all__ = ["NEEDS", "Options", "build", "incompatibilities"]
