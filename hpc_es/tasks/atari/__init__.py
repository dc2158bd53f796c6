"""`task: {kind: atari}`: Atari 2600 games of the Arcade Learning Environment, played from their pixels."""

from hpc_es.tasks.atari.task import OFFERS, Atari, Options, build

__all__ = ["OFFERS", "Atari", "Options", "build"]
