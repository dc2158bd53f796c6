"""The columns of log.csv, by the names of metrics.jsonl (plain) or of the systems this one descends from (classical).

Both have the 21 columns of the evolution strategies notebook in its order, then three of OpenAI's starter. A column is
the entry of its plain name in a row of metrics.jsonl; COMPUTED says which are not. docs/log_columns.md shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Number = float | int | None
Row = Mapping[str, Number]
Columns = Literal["plain", "classical"]

NAMES = {  # plain: classical
    "generation": "Generation",
    "return_mean": "GenRewMean",
    "return_std": "GenRewStd",
    "length_mean": "GenLenMean",
    "evaluation_return_mean": "EvalGenRewardMean",
    "evaluation_return_std": "EvalGenRewardStd",
    "evaluation_length_mean": "EvalGenLengthMean",
    "evaluation_episodes": "EvalGenCount",
    "episodes_this_generation": "EpisodesThisGen",
    "episodes_total": "EpisodesSoFar",
    "timesteps_this_generation": "TimestepsThisGen",
    "timesteps_total": "TimestepsSoFar",
    "ranks": "UniqueWorkers",
    "failed_fraction": "ResultsSkippedFrac",
    "observation_count": "ObCount",
    "seconds_this_generation": "TimeElapsedThisGen",
    "seconds_total": "TimeElapsed",
    "predict_microseconds_min": "TimePredictMin",
    "predict_microseconds_max": "TimePredictMax",
    "predict_microseconds_mean": "TimePredictMean",
    "predict_microseconds_count": "TimePredictCount",
    "gradient_norm": "GradNorm",
    "update_ratio": "UpdateRatio",
    "theta_norm": "Norm",
}


PREDICTIONS = ("predict_microseconds_min", "predict_microseconds_max", "predict_microseconds_mean")


def header(columns: Columns) -> str:
    """Return the first line of log.csv."""
    return ",".join(NAMES if columns == "plain" else NAMES.values()) + "\n"


def line(row: Row, columns: Columns) -> str:
    """Return the line of a row; what a row does not have is nan."""
    computed = COMPUTED[columns]
    cells = [computed[name](row) if name in computed else row.get(name) for name in NAMES]
    return ",".join("nan" if cell is None else repr(cell) for cell in cells) + "\n"


def _failed_fraction(row: Row) -> Number:
    failed, episodes = row.get("failed_episodes"), row.get("episodes_this_generation")
    return failed / episodes if failed is not None and episodes else None


def _square(name: str) -> Callable[[Row], Number]:
    def square(row: Row) -> Number:
        norm = row.get(name)
        return None if norm is None else norm * norm

    return square


def _seconds(name: str) -> Callable[[Row], Number]:
    def seconds(row: Row) -> Number:
        microseconds = row.get(name)
        return None if microseconds is None else microseconds * 1e-6

    return seconds


COMPUTED: dict[Columns, dict[str, Callable[[Row], Number]]] = {
    "plain": {"failed_fraction": _failed_fraction},
    "classical": {
        "failed_fraction": _failed_fraction,
        "ranks": lambda row: row.get("evaluating_ranks"),  # workers there evaluate, all of them
        "observation_count": lambda row: row.get("observations_this_generation"),  # of a batch there
        **{name: _seconds(name) for name in PREDICTIONS},
        "gradient_norm": _square("gradient_norm"),  # as the starter has them: sums of squares
        "theta_norm": _square("theta_norm"),
    },
}
