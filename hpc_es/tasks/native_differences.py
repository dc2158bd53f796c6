"""Results of comparing native stepping with Gymnasium's: the first difference by environment and keywords, "" if none.

Rank 0 compares both (`episodes/native_backend.py`) and broadcasts this before the other ranks create environments, so
that all ranks use the same. It is outside of `episodes/` since it is needed before Gymnasium is imported.
"""

from __future__ import annotations

differences: dict[str, str] = {}
