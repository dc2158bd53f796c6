"""The kinds of events, and which of them a case may have."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from tests.campaign import damage, deaths, surroundings
from tests.campaign.scene import Scene

Event = Callable[[Scene], None]

ANYWHERE: dict[str, Event] = {
    "kill rank 0": partial(deaths.killed, who="rank 0"),
    "kill a worker": partial(deaths.killed, who="worker"),
    "kill mpiexec": partial(deaths.killed, who="launcher"),
    "kill all": partial(deaths.killed, who="all"),
    "SIGTERM": partial(deaths.signalled, number=signal.SIGTERM),
    "SIGINT": partial(deaths.signalled, number=signal.SIGINT),
    "SIGUSR1": partial(deaths.signalled, number=signal.SIGUSR1),
    "SIGUSR2": partial(deaths.signalled, number=signal.SIGUSR2),
    "pause": deaths.paused,
    "second job": deaths.rival,
    "bits flipped": partial(damage.damaged, harm=damage.flip),
    "truncated": partial(damage.damaged, harm=damage.truncate),
    "newest missing": damage.missing,
    "file limit": surroundings.file_limit,
    "damaged text": damage.damaged_text,
    "strange file": damage.strange_file,
    "failing call": surroundings.failing_calls,
    "few descriptors": surroundings.few_descriptors,
    "clock jump": surroundings.clock_jump,
    "closed stderr": surroundings.closed_errors,
}
ON_A_DISK: dict[str, Event] = {
    "full disk": surroundings.full_disk,
    "read-only disk": surroundings.read_only_disk,
    "read-only folder": surroundings.read_only_checkpoints,
}
IN_TROUBLE: dict[str, Event] = {
    "nan": partial(surroundings.troubled, what="nan"),
    "raise": partial(surroundings.troubled, what="raise"),
    "hang": surroundings.hanging,
}
KINDS = ANYWHERE | ON_A_DISK | IN_TROUBLE


def beginning_with(only: str) -> list[str]:
    """The kinds that begin with `only`; ValueError if there is none that every case can have."""
    kinds = [kind for kind in ANYWHERE | ON_A_DISK if kind.startswith(only)]
    if not kinds:
        raise ValueError(
            f"--only: expected the beginning of {[*ANYWHERE, *ON_A_DISK]}, found {only!r}"
        )
    return kinds


def drawn(scene: Scene, only: str = "") -> str:
    """Kind of the next event; those that only some cases support are more frequent in these cases.

    `only`: the start of the kinds that are drawn, which all cases must support.
    """
    if only:
        return scene.dice.choice(beginning_with(only))
    rare = [
        *(ON_A_DISK if scene.disk.mounted else ()),
        *(IN_TROUBLE if scene.setting.troubled else ()),
    ]
    kind: str = scene.dice.choice(rare if rare and scene.dice.random() < 0.35 else list(ANYWHERE))
    return kind
