"""Damage to checkpoints between two starts; the next start resumes from the others,
with a warning.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.campaign.life import LateError, WrongError
from tests.campaign.scene import Scene
from tests.helpers.hostile import mutated

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
            life.wait_for(
                lambda: f"{harmed[-1].name}: damaged" in (directory / "log.txt").read_text()
            )
            life.stopped()


def missing(scene: Scene) -> None:
    """Remove the newest checkpoint."""
    _checkpoints(_open_directory(scene))[-1].unlink()
    with scene.life() as life:
        scene.instant(life, early=False)
        life.stopped()


def _open_directory(scene: Scene) -> Path:
    """A run directory that has checkpoints and is not finished;
    the first start creates one if there is none.
    """
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


TEXTS = (
    "status.json",
    "config.yaml",
    "metrics.jsonl",
    "log.csv",
    "log.txt",
    "failures.log",
    "evaluations.csv",
    "lock",
)


def damaged_text(scene: Scene) -> None:
    """Damage a text file of a run; the next start goes on or says why not,
    and goes on once the file is back.
    """
    directory = _open_directory(scene)
    file = directory / scene.dice.choice([name for name in TEXTS if (directory / name).exists()])
    before = file.read_bytes()
    # What is within the rows of a log is not compared with a digest.
    harmed = (
        mutated(before, scene.dice)
        if file.name not in ROWS
        else before[: scene.dice.randrange(len(before) + 1)]
    )
    file.write_bytes(harmed)
    _refused_or_gone_on(scene, file, before)


def strange_file(scene: Scene) -> None:
    """Replace a file of a run by a link, a pipe, a directory or a file of another user,
    as somebody else could.
    """
    directory = _open_directory(scene)
    file, victim = directory / scene.dice.choice(TEXTS), scene.directory / "victim"
    before = file.read_bytes() if file.exists() else None
    victim.write_text("of another run\n")
    file.unlink(missing_ok=True)
    match scene.dice.randrange(4):
        case 0:
            file.symlink_to(victim)
        case 1:
            os.mkfifo(file)
        case 2:
            file.mkdir()
        case 3:
            file.write_bytes(before or b"")
            file.chmod(0o444)
    if os.geteuid() == 0:
        os.lchown(file, STRANGER, STRANGER)
    _refused_or_gone_on(scene, file, before)
    if victim.read_text() != "of another run\n":
        raise WrongError(f"{file.name} was written through a link")


STRANGER = 12001
ROWS = ("metrics.jsonl", "log.csv", "evaluations.csv")


def _refused_or_gone_on(scene: Scene, file: Path, before: bytes | None) -> None:
    """Start the run, and put a file back that it refuses."""
    with scene.life() as life:
        life.survived(GOING_ON_SECONDS)
        status = life.job.process.returncode
    if status in {1, 2} and file.name not in scene.said:
        raise WrongError(f"status {status}, and nothing said of {file.name}")
    if status in {1, 2} or file.is_symlink() or not file.is_file():
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)
        if before is not None:
            file.write_bytes(before)


GOING_ON_SECONDS = 4.0
