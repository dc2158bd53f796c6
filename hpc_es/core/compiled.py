"""What Numba compiles, for those who have it; nothing of this is imported elsewhere but where Numba is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiled at its first call, and kept on disk for the next process where there is a place for it."""
    try:
        made: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the installation nor the user's cache can be written
        made = numba.njit(nogil=True)(function)
    return made  # type: ignore[no-any-return]
