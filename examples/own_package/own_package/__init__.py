"""A strategy, a task and a command for hpc_es."""
