"""Damage to checkpoints between two starts; the next start resumes from the others, with a warning."""

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
    """Flip one to three bits."""
    data = bytearray(path.read_bytes())
    for at in dice.sample(range(len(data)), dice.randint(1, 3)):
        data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, dice: random.Random) -> None:
    """Truncate a file, possibly to nothing."""
    os.truncate(path, dice.choice([0, dice.randrange(path.stat().st_size)]))


def damaged(scene: Scene, harm: Harm) -> None:
    """Damage the newest checkpoint, the newest two, or all."""
    directory = _open_directory(scene)
    paths = _checkpoints(directory)
    harmed = paths[-scene.dice.choice([1, 1, 2, len(paths)]) :]
    for path in harmed:
        harm(path, scene.dice)
    with scene.life() as life:
        if harmed == paths:
            life.ended({1, 2}, ALL_DAMAGED)
            for path in paths:  # as the message says
                path.unlink()
        else:
            life.wait_for(lambda: f"{harmed[-1].name}: damaged" in (directory / "log.txt").read_text())
            life.stopped()


def missing(scene: Scene) -> None:
    """Remove the newest checkpoint."""
    _checkpoints(_open_directory(scene))[-1].unlink()
    with scene.life() as life:
        scene.instant(life, early=False)
        life.stopped()


def _open_directory(scene: Scene) -> Path:
    """A run directory that has checkpoints and is not finished; the first start creates one if there is none."""
    if not any(_is_open(directory) for directory in scene.places):
        with scene.life() as life:
            scene.instant(life, early=False)
            life.stopped()
    if not (result := [directory for directory in scene.places if _is_open(directory)]):
        raise LateError
    return scene.dice.choice(result)


def _is_open(directory: Path) -> bool:
    try:
        status = json.loads((directory / "status.json").read_text())["status"]
    except OSError:
        return False
    return status != "finished" and bool(_checkpoints(directory))


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("checkpoints/checkpoint_*.h5"))
