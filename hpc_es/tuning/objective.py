"""What a trial is worth: its final return, or how often and how fast its repetitions succeed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

FINAL_RETURN = "final_return"
BEST_REWARD = "best_reward"
BY_NAME = (FINAL_RETURN, BEST_REWARD)
WEIGHT = "success_rate_weight"
MEASURES = ("success_rate", "programs_seen_fraction")  # beside the objective


def objective(rows: Sequence[Mapping[str, Any]], wanted: Any) -> float:
    """Return the objective of a trial from the results of its repetitions; ValueError says why there is none.

    `wanted` is "final_return" (the mean), "best_reward" (the mean, of searches for programs), or
    {success_rate_weight: w} for w * success_rate + (1 - w) * (1 - fraction), where fraction is the mean share of the
    budget that was used, all of it by a repetition without success. Of a search for programs the share is that of the
    programs until the first correct one.
    """
    if not rows:
        raise ValueError("there are no results")
    if wanted == FINAL_RETURN:
        returns = [row["final_return"] for row in rows]
        lacking = [row["repetition"] for row in rows if row["final_return"] is None]
        if lacking:
            raise ValueError(f"no final evaluation succeeded in repetition {', '.join(map(str, lacking))}")
        value = fmean(returns)
    elif wanted == BEST_REWARD:
        value = fmean(row["best_reward"] for row in rows)
    else:
        weight = float(wanted[WEIGHT])
        used = [fraction(row, row["budget"]) if row["success"] else 1.0 for row in rows]
        value = weight * fmean(bool(row["success"]) for row in rows) + (1 - weight) * (1 - fmean(used))
    if not math.isfinite(value):
        raise ValueError(f"the objective is {value}")
    return value


def measures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how often the repetitions of a trial succeed, and what share of their programs they execute until then.

    `success_rate` is there where the repetitions say what success is, `programs_seen_fraction` in a search for programs
    with a limit of programs: the mean of npe / limit, 1 for a repetition without success (Abolafia et al. 2018).
    """
    found: dict[str, float] = {}
    if rows and all(row["success"] is not None for row in rows):
        found["success_rate"] = fmean(bool(row["success"]) for row in rows)
        if all("npe" in row and row["budget"]["episodes"] for row in rows):
            seen = [min(row["npe"] / row["budget"]["episodes"], 1.0) if row["success"] else 1.0 for row in rows]
            found["programs_seen_fraction"] = fmean(seen)
    return found


def limits(budget: Mapping[str, Any]) -> dict[str, float]:
    """What ends a repetition, however good it is; seconds count only where nothing else does, as no clock is exact."""
    names = [name for name in sorted(budget) if name != "target_return" and budget[name] is not None]
    exact = [name for name in names if name != "seconds"]
    return {name: float(budget[name]) for name in exact or names}


def fraction(used: Mapping[str, Any], budget: Mapping[str, Any]) -> float:
    """Return the share of the budget that was used, 0 to 1: of the limit that is nearest."""
    used = {**used, "episodes": used.get("npe", used.get("episodes"))}
    shares = [float(used[name]) / limit for name, limit in limits(budget).items() if limit > 0]
    return min(max(shares, default=1.0), 1.0)
