"""Random runs under random events, with the results of undisturbed runs: `python -m
tests.campaign`.

A case is a config, a run directory and a few events, all drawn from (seed, case). Most events
befall one life of the run, on 1 to 4 ranks. After each, the newest checkpoint must be a state of
the undisturbed run, and at the end all that the run leaves behind must be equal to what that one
left.

What it does not cover: clocks jump for all that asks libc for the time, and for the files' times,
but not in the kernel; without a C compiler only the files' times jump. A full and a read-only disk
are small file systems, which only root may mount; others have the limit on the size of files, which
is tried in any case.
"""
