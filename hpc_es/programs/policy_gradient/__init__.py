"""`algorithm: {kind: policy_gradient}`: policy gradient and
priority queue training for programs.
"""
