"""The last line of a run: why it ended, and what it has reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_es.config.registry import module
from hpc_es.config.schema import Config
from hpc_es.storage.status import is_surpassed
from hpc_es.training.compatibility import needs

if TYPE_CHECKING:
    from hpc_es.training.recorder import Recorder


def end_message(
    config: Config,
    status: str,
    reason: str,
    generations: int,
    writer: Recorder,
    final: Mapping[str, float],
) -> str:
    """Return the line; `final` is what the final evaluation found, if there was one."""
    counters = writer.counters
    measured = f"  final evaluation {final['final_return_mean']:.4g}" if final else ""
    best = f"  best evaluation {writer.best.return_:.4g}" if writer.best else ""
    last = " (the last theta did better)" if is_surpassed(writer.best, final) else ""
    again = "; the same command carries on" if status == "interrupted" else ""
    searched = needs(config).searches == "programs"
    is_objective = module("tasks", config.task.kind).OFFERS.values
    what = "programs" if searched else "evaluations" if is_objective else "episodes"
    work = f"{counters['episodes']:,} programs" if searched else f"{counters['timesteps']:,} timesteps"
    work = f"{generations} generations, {work}, {counters['failed_episodes']:,} failed {what}"
    if status == "failed":
        return f"failed after {work}{best}: {reason}"
    return f"{status} by {reason} after {work}{measured}{best}{last}{again}"
