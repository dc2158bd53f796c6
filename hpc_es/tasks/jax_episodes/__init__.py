"""`task: {kind: jax_episodes}`: episodes of environments that JAX compiles,
whole chunks in a call.
"""
