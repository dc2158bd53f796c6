"""`python -m hpc_es` is `hpc-es`."""

from hpc_es.cli import main

main()
