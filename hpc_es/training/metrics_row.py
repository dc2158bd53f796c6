"""The row of numbers that a generation leaves in the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hpc_es.core.data import INFO, Array, Rows, State, finished_episodes
from hpc_es.core.interfaces import Problem
from hpc_es.training.executors import TIMES, Evaluated

MetricsRow = dict[str, float | int | None]
Counters = dict[str, float | int]

# What a run has used; `failed_generations` are those without a successful evaluation since the last one with one.
NOTHING_USED: Counters = {"episodes": 0, "timesteps": 0, "seconds": 0.0, "failed_episodes": 0, "failed_generations": 0}


def metrics_row(
    generation: int,
    evaluated: Evaluated,
    episodes_per_job: int,
    ranks: tuple[int, int],
    learned: Mapping[str, float],
    seconds: float,
    before: Mapping[str, float | int],
    info: Iterable[str] = (),
    is_objective: bool = False,
) -> MetricsRow:
    """Return all metrics of a generation.

    `ranks` are all and those that evaluate, `before` the totals so far (episodes, timesteps, seconds), `info` the keys
    of `report.info`. Returns, lengths and numbers of infos are None where no episode ended. Probes count as episodes
    and timesteps, since an update depends on them; of an objective evaluations of the centre too, since each has its
    cost, and may be the best.
    """
    rows, probes = evaluated.results.rows, evaluated.results.probes
    episode_rows = finished_episodes(rows)
    more = [probes, evaluated.evaluation] if is_objective else [probes]
    timesteps = int(rows["length"].sum() + sum(each["length"].sum() for each in more))
    episodes = (len(episode_rows) + sum(map(len, more))) * episodes_per_job
    return {
        "generation": generation,
        **_statistics("", episode_rows),
        **_statistics("evaluation_", evaluated.evaluation),
        **_infos("info_", info, episode_rows),
        **_infos("evaluation_info_", info, evaluated.evaluation),
        "evaluation_episodes": len(evaluated.evaluation) * episodes_per_job,
        "episodes_this_generation": episodes,
        "episodes_total": int(before["episodes"]) + episodes,
        "timesteps_this_generation": timesteps,
        "timesteps_total": int(before["timesteps"]) + timesteps,
        "failed_episodes": _failed(rows, *more) * episodes_per_job,  # with one, a job's are all dropped
        "ranks": ranks[0],
        "evaluating_ranks": ranks[1],
        "busy_ranks": int((evaluated.headers["chunks"] > 0).sum()),  # that have evaluated something
        **learned,
        "seconds_this_generation": seconds,
        "seconds_total": before["seconds"] + seconds,
        "steps_per_second": timesteps / max(seconds, 1e-9),
        "tail_seconds": evaluated.tail_seconds,
        **_times(evaluated.headers, timesteps),
    }


def problem_metrics(problem: Problem, before: State, after: State) -> dict[str, float]:
    """Return the problem's own metrics; where it counts observations, how many this generation added to them too."""
    carried = problem.carried()
    measured = dict(problem.metrics(carried.extract_from(after)))
    if (count := measured.get("observation_count")) is not None:
        new = count - problem.metrics(carried.extract_from(before))["observation_count"]
        measured["observations_this_generation"] = float(round(new))  # the count begins at 0.01
    return measured


def counters_after(before: Mapping[str, float | int], metrics: MetricsRow, rows: Rows) -> Counters:
    """Return what the run has used after a generation, from its metrics and its training rows."""
    failed = len(rows) > 0 and not np.isfinite(rows["return_"]).any()
    return {
        "episodes": int(metrics["episodes_total"] or 0),
        "timesteps": int(metrics["timesteps_total"] or 0),
        "seconds": float(metrics["seconds_total"] or 0),
        "failed_episodes": int(before["failed_episodes"]) + int(metrics["failed_episodes"] or 0),
        "failed_generations": int(before["failed_generations"]) + 1 if failed else 0,
    }


def _failed(*rows: Rows) -> int:
    return sum(int(np.isnan(each["return_"]).sum()) for each in rows)


def _statistics(prefix: str, rows: Rows) -> MetricsRow:
    returns: Array = rows["return_"][~np.isnan(rows["return_"])]
    lengths = rows["length"][~np.isnan(rows["return_"])]
    if not len(returns):
        names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
        return {prefix + name: None for name in names}
    return {
        prefix + "return_mean": float(returns.mean()),
        prefix + "return_std": float(returns.std()),
        prefix + "return_min": float(returns.min()),
        prefix + "return_max": float(returns.max()),
        prefix + "length_mean": float(lengths.mean()),
    }


def _infos(prefix: str, keys: Iterable[str], rows: Rows) -> MetricsRow:
    """Return the means over the jobs that have a number; None where none has."""
    means: MetricsRow = {}
    for column, key in enumerate(keys):
        numbers = rows[INFO][:, column]
        numbers = numbers[~np.isnan(numbers)]
        means[prefix + key] = float(numbers.mean()) if len(numbers) else None
    return means


def _times(headers: Array, timesteps: int) -> MetricsRow:
    """How rank time was spent, mean and worst rank, and the time of one policy call (a whole stack of observations)."""
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
        "predict_microseconds_mean": float(1e6 * seconds.sum() / calls.sum()) if any_calls else None,
        "predict_microseconds_count": int(calls.sum()),
    }
