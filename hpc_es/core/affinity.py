"""The cores that this process may use, as its launcher gave them: libraries may bind it to fewer later.

`hpc_es.main` imports this before any of them.
"""

from __future__ import annotations

import os

AT_START: tuple[int, ...] = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
