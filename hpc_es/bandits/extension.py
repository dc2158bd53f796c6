"""What the package of bandits gives hpc_es."""

from __future__ import annotations

import enum

from hpc_es.core.extensions import Extension


class BanditPurpose(enum.IntEnum):
    """Random numbers of bandits. Results depend on the value."""

    BANDITS = 15


EXTENSION = Extension(
    tasks={"bandits": "hpc_es.bandits.task"},
    commands={"bandit-report": "hpc_es.bandits.commands"},
    # the public path of the environment
    environments=("hpc_es.tasks.bandits:hpc_es/Bandit-v0",),
    purposes=BanditPurpose.__members__,
)
