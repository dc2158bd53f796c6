"""Why native stepping of an environment is not Gymnasium's, to the last bit: by environment and keywords, "" if it is.

Rank 0 compares the two (`episodes/native_backend.py`) and broadcasts this before the others make their environments, so
that all ranks step in the same way. It is here and not in `episodes/` so that it is known without importing Gymnasium.
"""

from __future__ import annotations

differences: dict[str, str] = {}
