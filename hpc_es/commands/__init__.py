"""The commands of `hpc-es`, one file each; see `hpc_es/cli.py` for what a command offers."""
