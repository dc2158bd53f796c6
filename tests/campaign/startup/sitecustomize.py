"""Imported by Python at the start of each rank of the campaign: a signal shows where every thread is."""

import faulthandler
import signal
import sys

STACKS = signal.SIGRTMIN + 5

faulthandler.register(STACKS, file=sys.stderr, all_threads=True)
