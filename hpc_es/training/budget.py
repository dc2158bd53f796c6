"""The budget `stop.episodes`: which runs end exactly at it, and what others use in its place.

The last generation is cut to the budget: its last jobs are not evaluated, and it makes no update
(see `Generation` and `Recording.add_cut`). Searches with several generations in flight,
asynchronous updates, and policies that are trained by gradients of episodes end with the generation
that reaches the budget.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from hpc_es.config.schema import Config
from hpc_es.core.interfaces import Problem, RepeatsJobs
from hpc_es.training.generation_jobs import jobs_of_generation


def may_be_cut(config: Config) -> bool:
    """Return whether the last generation of a run is cut to `stop.episodes`."""
    return not _why_whole(config)


def _why_whole(config: Config) -> str:
    """Return why generations of this config are not cut, or ""."""
    needs = config.setup.needs
    why = needs.asynchronous or needs.in_flight
    if why is not None:
        return str(why)
    return (
        f"{config.algorithm.kind} needs whole batches" if needs.searches == "trajectories" else ""
    )


def budget_warning(
    config: Config, problem: Problem, used: int = 0, generation: int = 0
) -> str | None:
    """Return a warning if a run ends after more evaluations than `stop.episodes`, or None.

    `used` is the number of evaluations so far, `generation` the number of the next generation.
    """
    limit = config.stop.episodes
    if limit is None or limit <= used:
        return None
    key, per_job = f"stop.episodes: {limit}", problem.episodes_per_job
    if may_be_cut(config):
        more = -(limit - used) % per_job
        if not more:
            return None
        why, low, high = f"task.episodes_per_job, {per_job}", limit + more - per_job, limit + more
        return f"{key} is not a multiple of {why}: the run ends after {high}; {low} and {high} fit"
    why = _why_whole(config)
    is_repeated = isinstance(problem, RepeatsJobs) and problem.has_repeats
    are_equal = config.setup.needs.equal_generations and not is_repeated
    jobs = jobs_of_generation(config, problem) if are_equal else 0
    if not jobs:
        return f"{key} may fall within a generation, and {why}: the run then ends after that generation"
    interval, measured = config.evaluation.interval, 0
    if problem.is_objective and interval:
        episodes = problem.evaluation_episodes
        measured = config.evaluation.episodes if episodes is None else episodes

    def total(generations: int) -> int:
        """Return the number of evaluations after so many further generations."""
        counted = generations * jobs
        if measured:
            last = generation + generations
            counted += measured * (math.ceil(last / interval) - math.ceil(generation / interval))
        return used + counted * per_job

    generations = bisect_left(range(limit + 1), limit, key=total)
    low, high = total(generations - 1), total(generations)
    if high == limit:
        return None
    fits = f"{low} and {high} fit" if low else f"{high} fits"
    return f"{key} is not the end of a generation, and {why}: the run ends after {high}; {fits}"
