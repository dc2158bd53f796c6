"""status.json, which scripts read: how a run stands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import Best

STATUS = "status.json"


def final_evaluation(directory: Path, generation: int | None) -> dict[str, float]:
    """Return the final evaluation of a run that was finished already, at this generation; nothing of another one."""
    try:
        status = json.loads((directory / STATUS).read_text())
        names = [name for name in status if name.startswith("final_")]
        return {name: float(status[name]) for name in names} if status["generation"] == generation else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_surpassed(best: Best | None, final: Mapping[str, float]) -> bool:
    """Whether the final evaluation, of the last theta, gave more than the best of the evaluations on the way."""
    return best is not None and final.get("final_return_mean", -math.inf) > best.return_
