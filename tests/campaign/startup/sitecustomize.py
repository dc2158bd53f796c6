"""Imported by Python at the start of each rank of the campaign: a signal shows where every thread
is.

With HPC_ES_CAMPAIGN_CLOSED the rank has no standard error.
"""

import faulthandler
import os
import signal
import sys

STACKS = signal.SIGRTMIN + 5

if os.environ.get("HPC_ES_CAMPAIGN_CLOSED"):  # as `2>&-`
    os.close(2)
    sys.stderr = sys.__stderr__ = None  # type: ignore[assignment, misc]
else:
    faulthandler.register(STACKS, file=sys.stderr, all_threads=True)
