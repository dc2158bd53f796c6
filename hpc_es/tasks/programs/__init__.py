"""`task: {kind: programs}`: programs to be found for a coding task."""

from hpc_es.tasks.programs.task import HILL_CLIMB, OFFERS, PAPER, CodingTask, Options, Programs, Score, build, make_task

__all__ = ["HILL_CLIMB", "OFFERS", "PAPER", "CodingTask", "Options", "Programs", "Score", "build", "make_task"]
