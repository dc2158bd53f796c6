"""`algorithm: {kind: policy_gradient}`: policy gradient and priority queue training for programs."""

from hpc_es.programs.policy_gradient.algorithm import NEEDS, build
from hpc_es.programs.policy_gradient.options import Options

__all__ = ["NEEDS", "Options", "build"]
