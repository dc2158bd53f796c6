"""What befalls checkpoints between two lives; the next one goes on from what is left, and says so."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.campaign.life import LateError
from tests.campaign.scene import Scene

Harm = Callable[[Path, random.Random], None]
ALL_DAMAGED = "every checkpoint is damaged"


def flip(path: Path, dice: random.Random) -> None:
    """One to three bits are other ones."""
    data = bytearray(path.read_bytes())
    for at in dice.sample(range(len(data)), dice.randint(1, 3)):
        data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, dice: random.Random) -> None:
    """The end is missing, or all."""
    os.truncate(path, dice.choice([0, dice.randrange(path.stat().st_size)]))


def damaged(scene: Scene, harm: Harm) -> None:
    """The newest checkpoint is damaged, or the newest two, or all."""
    place = _place(scene)
    paths = _checkpoints(place)
    harmed = paths[-scene.dice.choice([1, 1, 2, len(paths)]) :]
    for path in harmed:
        harm(path, scene.dice)
    with scene.life() as life:
        if harmed == paths:
            life.ended({1, 2}, ALL_DAMAGED)
            for path in paths:  # as the message says
                path.unlink()
        else:
            life.wait_for(lambda: f"{harmed[-1].name}: damaged" in (place / "log.txt").read_text())
            life.stopped()


def missing(scene: Scene) -> None:
    """The newest checkpoint has gone."""
    _checkpoints(_place(scene))[-1].unlink()
    with scene.life() as life:
        scene.instant(life, early=False)
        life.stopped()


def _place(scene: Scene) -> Path:
    """A run directory that has checkpoints and is not finished; a first life makes one where there is none."""
    if not any(_is_open(place) for place in scene.places):
        with scene.life() as life:
            scene.instant(life, early=False)
            life.stopped()
    if not (found := [place for place in scene.places if _is_open(place)]):
        raise LateError
    return scene.dice.choice(found)


def _is_open(place: Path) -> bool:
    try:
        status = json.loads((place / "status.json").read_text())["status"]
    except OSError:
        return False
    return status != "finished" and bool(_checkpoints(place))


def _checkpoints(place: Path) -> list[Path]:
    return sorted(place.glob("checkpoints/checkpoint_*.h5"))
