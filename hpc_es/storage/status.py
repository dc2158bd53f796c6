"""status.json, which scripts read: how a run stands."""

from __future__ import annotations

import json
from pathlib import Path

STATUS = "status.json"


def final_evaluation(directory: Path, generation: int | None) -> dict[str, float]:
    """Return the final evaluation of a run that was finished already, at this generation; nothing of another one."""
    try:
        status = json.loads((directory / STATUS).read_text())
        names = [name for name in status if name.startswith("final_")]
        return {name: float(status[name]) for name in names} if status["generation"] == generation else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
