"""`task: {kind: episodes}`: episodes of a Gymnasium environment."""

from hpc_es.tasks.episodes.task import OFFERS, Episodes, Options, build, sources

__all__ = ["OFFERS", "Episodes", "Options", "build", "sources"]
