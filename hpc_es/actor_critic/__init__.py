"""`algorithm: {kind: actor_critic}`: advantage actor-critic with memory."""
