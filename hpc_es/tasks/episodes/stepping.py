"""Results of comparing native stepping with Gymnasium's on this machine.

Rank 0 compares both (`native_backend.py`) and broadcasts the results before the other ranks create
environments, so that all ranks use the same.
"""

from __future__ import annotations

# the first difference by environment and keywords, "" if there is none
stepping_differences: dict[str, str] = {}
