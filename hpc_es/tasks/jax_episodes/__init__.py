"""`task: {kind: jax_episodes}`: episodes of environments that JAX compiles, whole chunks in a call."""

from hpc_es.tasks.jax_episodes.task import OFFERS, JaxEpisodes, Options, build, sources

__all__ = ["OFFERS", "JaxEpisodes", "Options", "build", "sources"]
