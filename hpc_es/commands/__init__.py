"""The commands of `hpc-es`, one file each; see `hpc_es/cli.py` for what a command offers."""

TRUST = "run code of the user's own (kinds, programs) that is not what the checkpoint was trained with"
