"""What this package gives hpc_es. Nothing else is imported before it is used."""

from __future__ import annotations

import enum

from hpc_es.extend import Extension, purpose_number


class Purpose(enum.IntEnum):
    """The random numbers of this package; results depend on the names."""

    MUTATION = purpose_number("own_package.mutation")


EXTENSION = Extension(
    algorithms={"sigma_sa": "own_package.sigma_sa:SigmaSA"},
    tasks={"thomson": "own_package.thomson"},
    commands={"thomson-table": "own_package.table"},
    purposes=Purpose.__members__,
)
