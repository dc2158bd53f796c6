"""The commands of `hpc-es`, grouped by topic.

`hpc_es/cli.py` lists them. The command `tune-report` has `add_tune_report_arguments(parser)` and
`run_tune_report(arguments)`, which returns the exit status and whose docstring is the help text. A
topic's module imports what a command needs only when that command runs.
"""

WHICH = (
    "theta to use (default: of a run the one with the better evaluation, of best.h5 the best one, "
    "of another checkpoint file that of its generation)"
)
TRUST = "run the custom code that the run names, whoever wrote it, this once (see hpc-es trust)"
