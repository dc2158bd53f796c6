"""Types of command line arguments that several commands take."""

from __future__ import annotations

import argparse
import re


def whole_number(text: str) -> int:
    """Return a whole number of at least 1; ArgumentTypeError."""
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)
