"""The commands of `hpc-es`, grouped by topic.

`hpc_es/cli.py` lists them; extensions have more. The command `tune-report` has
`add_tune_report_arguments(parser)` and `run_tune_report(arguments)`, which returns the exit status
and whose docstring is the help text. A topic's module imports what a command needs only when that
command runs.
"""
