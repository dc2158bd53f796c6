"""`policy: {kind: mlp}`: a feed-forward network."""

from hpc_es.policies.mlp.policy import MLP, Options, build

__all__ = ["MLP", "Options", "build"]
