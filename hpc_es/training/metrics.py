"""The metrics of a finished generation, and the counters of the run that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpc_es.core.data import INFO, Array, Rows, State, finished_episodes
from hpc_es.core.interfaces import Problem
from hpc_es.core.quantities import means
from hpc_es.training.finished import FinishedGeneration
from hpc_es.training.generation import Counters, MetricsRow
from hpc_es.training.messages import TIMES

STATISTICS = ("return_mean", "return_std", "return_min", "return_max", "length_mean")


def metrics_row(
    finished: FinishedGeneration,
    problem: Problem,
    counters: Counters,
    *,
    seconds: float,
    info: Sequence[str] = (),
) -> MetricsRow:
    """Return all metrics of a generation.

    Returns, lengths and infos are None if no episode ended. Probes count as episodes and timesteps,
    because updates depend on them. For objectives, so do evaluations of the centre: each has its
    cost and may be the best value.

    Args:
        counters: totals of the run before this generation.
        seconds: that it took.
        info: keys of `report.info`.
    """
    evaluated, update = finished.evaluated, finished.update
    before, (workers, evaluators) = finished.before, finished.workers
    rows, evaluation = evaluated.results.rows, evaluated.evaluation
    counted = [evaluated.results.probes, *([evaluation] if problem.is_objective else [])]
    episode_rows = finished_episodes(rows)
    jobs = evaluated.training_evaluations  # of which `rows` are the means, if they are repeated
    timesteps = int(jobs["length"].sum() + sum(other["length"].sum() for other in counted))
    ended = episode_rows if jobs is rows else jobs
    episodes = (len(ended) + sum(map(len, counted))) * problem.episodes_per_job
    failed_jobs = sum(int(np.isnan(each["return_"]).sum()) for each in (jobs, *counted))
    return {
        "generation": before.generation,
        **_statistics("", episode_rows),
        **_statistics("evaluation_", evaluation),
        **info_means("info_", info, episode_rows),
        **info_means("evaluation_info_", info, evaluation),
        **means(problem.quantities, episode_rows),
        **means(problem.quantities, evaluation, "evaluation_"),
        "evaluation_episodes": len(evaluation) * problem.episodes_per_job,
        "episodes_this_generation": episodes,
        "episodes_total": int(counters["episodes"]) + episodes,
        "timesteps_this_generation": timesteps,
        "timesteps_total": int(counters["timesteps"]) + timesteps,
        # one failed episode drops all episodes of its job
        "failed_episodes": failed_jobs * problem.episodes_per_job,
        "ranks": workers,
        "evaluating_ranks": evaluators,
        # that evaluated at least one chunk
        "busy_ranks": int((evaluated.headers["chunks"] > 0).sum()),
        **update.metrics,
        **problem_metrics(problem, before, update.state),
        **finished.metrics,
        "seconds_this_generation": seconds,
        "seconds_total": counters["seconds"] + seconds,
        "steps_per_second": timesteps / max(seconds, 1e-9),
        "tail_seconds": evaluated.tail_seconds,
        **_times(evaluated.headers),
    }


def problem_metrics(problem: Problem, before: State, after: State) -> dict[str, float]:
    """Return the problem's own metrics.

    If it counts observations, also the number that this generation added.
    """
    carried = problem.carried()
    metrics = dict(problem.metrics(carried.extract_from(after)))
    if (count := metrics.get("observation_count")) is not None:
        new = count - problem.metrics(carried.extract_from(before))["observation_count"]
        metrics["observations_this_generation"] = float(round(new))  # the count starts at 0.01
    return metrics


def counters_after(before: Mapping[str, float | int], metrics: MetricsRow, rows: Rows) -> Counters:
    """Return the counters of the run after a generation, from its metrics and training rows."""
    failed = len(rows) > 0 and not np.isfinite(rows["return_"]).any()
    return {
        "episodes": int(metrics["episodes_total"] or 0),
        "timesteps": int(metrics["timesteps_total"] or 0),
        "seconds": float(metrics["seconds_total"] or 0),
        "failed_episodes": int(before["failed_episodes"]) + int(metrics["failed_episodes"] or 0),
        "failed_generations": int(before["failed_generations"]) + 1 if failed else 0,
    }


def _statistics(prefix: str, rows: Rows) -> MetricsRow:
    succeeded = ~np.isnan(rows["return_"])
    returns: Array = rows["return_"][succeeded]
    lengths = rows["length"][succeeded]
    if not len(returns):
        return {prefix + name: None for name in STATISTICS}
    values = (returns.mean(), returns.std(), returns.min(), returns.max(), lengths.mean())
    return {prefix + name: float(value) for name, value in zip(STATISTICS, values, strict=True)}


def info_means(prefix: str, keys: Iterable[str], rows: Rows) -> MetricsRow:
    """Return the mean of each number of `report.info` over the jobs that have it, None if no job
    has.
    """
    means: MetricsRow = {}
    for column, key in enumerate(keys):
        numbers = rows[INFO][:, column]
        numbers = numbers[~np.isnan(numbers)]
        means[prefix + key] = float(numbers.mean()) if len(numbers) else None
    return means


def _times(headers: Array) -> MetricsRow:
    """Return mean and maximum time over HEADER[ranks] by activity, and that of a policy call.

    A call is that for a batch of rows.
    """
    times: MetricsRow = {}
    for name in TIMES:
        times[f"time_{name}_mean"] = float(headers[name].mean())
        times[f"time_{name}_worst"] = float(headers[name].max())
    calls, seconds = headers["policy_calls"], headers["policy"]
    mean = 1e6 * seconds[calls > 0] / calls[calls > 0]
    any_calls = len(mean) > 0
    return {
        **times,
        "predict_microseconds_min": float(mean.min()) if any_calls else None,
        "predict_microseconds_max": float(mean.max()) if any_calls else None,
        "predict_microseconds_mean": float(1e6 * seconds.sum() / calls.sum())
        if any_calls
        else None,
        "predict_microseconds_count": int(calls.sum()),
    }
