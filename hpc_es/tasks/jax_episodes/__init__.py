"""`task: {kind: jax_episodes}`: episodes of environments that JAX compiles, chunk by chunk."""
