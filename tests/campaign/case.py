"""One case: a setting, a run, and events until the run has finished or something is wrong."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.clock import Clock
from tests.campaign.disk import Disk
from tests.campaign.kinds import KINDS, ON_A_DISK, beginning_with, drawn
from tests.campaign.life import HungError, LateError, WrongError
from tests.campaign.reference import Reference
from tests.campaign.scene import Scene
from tests.campaign.settings import Setting, setting

CASES_OF_A_SETTING = 4  # which share the undisturbed run
FEWEST_EVENTS, MOST_EVENTS = 3, 8
RIGHT, LATE, WRONG, HUNG = "right", "late", "wrong", "hung"
END = "the end"  # the life that comes to the end, and is compared


@dataclass(frozen=True)
class Record:
    """Outcome of an event; a line of events.jsonl."""

    case: int
    kind: str
    verdict: str
    ranks: int
    seconds: float
    family: str
    why: str = ""


def setting_of(seed: int, number: int, delayed: bool = False) -> Setting:
    """The setting of a case."""
    return setting(random.Random(f"setting {seed} {number // CASES_OF_A_SETTING}"), delayed)


def play(seed: int, number: int, out: Path, delayed: bool = False, only: str = "") -> list[Record]:
    """Play a case in `out`; its directory stays there if something is wrong.

    `only`: start of the kinds of events.
    """
    directory, chosen = out / f"case_{number:05d}", setting_of(seed, number, delayed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(json.dumps(chosen.values, indent=1))
    reference, dice = Reference(out / "references", chosen), random.Random(f"case {seed} {number}")
    needs_disk = bool(only) and any(kind in ON_A_DISK for kind in beginning_with(only))
    disk = Disk(directory / "disk", is_small=dice.random() < 0.5 or needs_disk)
    with disk:
        scene = Scene(directory, chosen, dice, disk, Clock(out))
        records = list(_records(number, scene, reference, only))
        if records[-1].verdict in {WRONG, HUNG}:
            (directory / "said.txt").write_text(scene.said)
            _keep(scene.output, directory / "run")
            return records
    shutil.rmtree(directory)
    return records


def _keep(run: Path, copy: Path) -> None:
    """Copy a run as it was found, without pipes and devices, which would be read to their end."""

    def strange(folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder) / name for name in names]
        return [path.name for path in paths if not (path.is_file() or path.is_dir())]

    if run.exists():
        shutil.copytree(run, copy, ignore=strange, symlinks=True, dirs_exist_ok=True)


def _records(number: int, scene: Scene, reference: Reference, only: str) -> Iterator[Record]:
    for _ in range(scene.dice.randint(FEWEST_EVENTS, MOST_EVENTS)):
        kind, since = drawn(scene, only), time.monotonic()
        verdict, why = _verdict(scene, reference, kind)
        yield _record(number, scene, kind, verdict, since, why)
        if verdict in {WRONG, HUNG}:
            return
        if verdict == LATE:
            break
    since = time.monotonic()
    verdict, why = _end(scene, reference)
    yield _record(number, scene, END, verdict, since, why)


def _record(number: int, scene: Scene, kind: str, verdict: str, since: float, why: str) -> Record:
    seconds = round(time.monotonic() - since, 1)
    return Record(number, kind, verdict, scene.ranks, seconds, scene.setting.family, why)


def _verdict(scene: Scene, reference: Reference, kind: str) -> tuple[str, str]:
    verdict = RIGHT
    try:
        KINDS[kind](scene)
    except LateError:
        verdict = LATE
    except WrongError as error:
        return WRONG, str(error)
    except HungError as error:
        return HUNG, str(error)
    strange = reference.strange(scene.output)
    return (WRONG, strange) if strange else (verdict, "")


def _end(scene: Scene, reference: Reference) -> tuple[str, str]:
    try:
        with scene.life() as life:
            status = life.end()
    except HungError as error:
        return HUNG, str(error)
    if status != 0:
        return WRONG, f"status {status}\n{scene.said}"
    different = reference.different(scene.output)
    return (WRONG, "different: " + ", ".join(different)) if different else (RIGHT, "")
