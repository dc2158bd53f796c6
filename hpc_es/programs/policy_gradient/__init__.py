"""`algorithm: {kind: policy_gradient}`, with priority queue training, for programs."""
