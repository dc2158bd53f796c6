"""`python -m tests.campaign.commands`: commands of hpc-es on damaged files of runs; status 1 if one
had a traceback, did not end, took too much memory, hid another run or gave another result.

Each command gets a copy of a run of which one file is damaged, beside a whole one, and runs in a
process that is forked from this one. The same seed draws the same damage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_es import cli
from tests.campaign.damage import flip, truncate
from tests.helpers.harness import ROOT
from tests.helpers.hostile import mutated

SECONDS, MEMORY = 60, 2 << 30  # of a command
WHOLE = "whole"  # name of the run that is not damaged
COMMON: Mapping[str, Any] = {
    "seed": 1,
    "noise": {"kind": "counter"},
    "report": {"plot_interval_seconds": 0},
    "checkpoint": {"interval": 2, "interval_seconds": 0, "keep_last": 3},
    "stop": {"generations": 4},
}
FUNCTION = {"kind": "function", "dimension": 3, "goal": "minimise"}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "function": {
        "task": {**FUNCTION, "function": "tests.campaign.trouble:cost"},
        "algorithm": {"kind": "cma_es", "population_size": 6},
    },
    "episodes": {
        "task": {"kind": "episodes", "env_id": "CartPole-v1"},
        "policy": {"kind": "mlp", "hidden_dims": [4]},
        "algorithm": {"kind": "es", "population_size": 6},
    },
    "archive": {
        "task": {
            **FUNCTION,
            "function": "configs.archive_functions:sphere",
            "batch": 12,
            "measures": {"a": [-5, 5], "b": [-5, 5]},
        },
        "algorithm": {"kind": "map_elites", "population_size": 12, "archive": {"cells": [5, 5]}},
    },
    "front": {
        "task": {
            **FUNCTION,
            "function": "tests.campaign.commands:two",
            "objectives": {"left": {"goal": "minimise"}, "right": {"goal": "minimise"}},
        },
        "algorithm": {"kind": "nsga2", "population_size": 8},
    },
    "programs": {"task": {"kind": "programs", "name": "reverse"}, "algorithm": {"kind": "ga"}},
}


def two(x: Any) -> Mapping[str, Any]:
    """Two objectives of a vector."""
    return {"objectives": [float((x**2).sum()), float(((x - 1) ** 2).sum())]}


def commands(run: Path, scratch: Path) -> Sequence[Sequence[str]]:
    """What is asked of a run; `scratch` is for what is written."""
    return (
        ("list", str(run.parent)),
        ("results", str(run.parent)),
        ("plot", str(run), "-o", str(scratch / "plot.png")),
        ("report", str(run.parent), "-o", str(scratch / "report.html")),
        ("inspect", str(run)),
        ("eval", str(run), "--trust"),
        ("export", str(run), str(scratch / "best.json"), "--trust"),
        ("export", str(run), str(scratch / "policy.npz"), "--trust"),
        ("trust", str(run)),
        ("train", str(run / "config.yaml"), "--output", str(run)),
    )


@dataclass(frozen=True)
class Done:
    """A command that has ended, or was ended."""

    status: int | None  # None: it did not end
    out: str
    errors: str
    memory: int  # bytes

    def verdict(self) -> str:
        """What is wrong with it, "" if nothing is."""
        if self.status is None:
            return "did not end"
        if "Traceback" in self.errors or self.status not in (0, 1, 2):
            return f"traceback, status {self.status}"
        return "took too much memory" if self.memory > MEMORY else ""


def forked(arguments: Sequence[str], scratch: Path) -> Done:
    """Run a command in a child of this process."""
    out, errors = scratch / "out", scratch / "errors"
    child = os.fork()
    if not child:
        _run_and_end(arguments, out, errors)
    deadline, pid = time.monotonic() + SECONDS, 0
    while not pid and time.monotonic() < deadline:
        pid, status, used = os.wait4(child, os.WNOHANG)
        time.sleep(0.002)
    if not pid:
        os.kill(child, signal.SIGKILL)
        _, _, used = os.wait4(child, 0)
    texts = (path.read_text(errors="replace") for path in (out, errors))
    code = os.waitstatus_to_exitcode(status) if pid else None
    return Done(code, *texts, used.ru_maxrss << 10)


def _run_and_end(arguments: Sequence[str], out: Path, errors: Path) -> None:
    """Run a command in this process, a child, and end it."""
    status = 1
    try:
        for number, path in ((1, out), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["hpc-es", *arguments]
        cli.main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def train(directory: Path) -> Sequence[Path]:
    """Run each of RUNS; the directories."""
    found = []
    for name, values in RUNS.items():
        config = directory / f"{name}.yaml"
        config.write_text(json.dumps({**COMMON, **values, "name": name}))
        words = [sys.executable, "-m", "hpc_es.main", str(config), "--output", directory / name]
        subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found.append(directory / name)
    return found


def preload(run: Path, scratch: Path) -> None:
    """Import what the commands import, so that children need not."""
    listed = scratch / "modules"
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for arguments in commands(run, scratch)[:6]:
            with contextlib.suppress(SystemExit):
                cli.main(arguments)
        listed.write_text("\n".join(sys.modules))
        os._exit(0)
    os.waitpid(child, 0)
    for name in listed.read_text().split():
        if name not in sys.modules and not name.startswith("mpi4py"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


class Play:
    """Draws damage and commands, and judges what they do."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._dice, self._directory = random.Random(seed), directory
        self._runs = train(directory)
        self._scratch = directory / "scratch"
        self._scratch.mkdir()
        preload(self._runs[0], self._scratch)
        self._evaluated: dict[Path, str] = {}  # what eval prints of a whole run

    def next(self) -> tuple[str, str, Done]:
        """Damage a file and run a command; the case, what is wrong ("" if nothing), and more."""
        dice, shelf = self._dice, self._directory / "shelf"
        shutil.rmtree(shelf, ignore_errors=True)
        source = dice.choice(self._runs)
        run = shelf / "damaged"
        shutil.copytree(source, run, symlinks=True)
        shutil.copytree(self._runs[0], shelf / WHOLE)
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
        checkpoints = [path for path in files if path.suffix == ".h5"]
        file = dice.choice(checkpoints if dice.random() < 0.3 else files)
        how = self._damage(file)
        arguments = dice.choice(commands(run, self._scratch))
        done = forked(arguments, self._scratch)
        case = f"{source.name}: {file.relative_to(run)} {how}, {arguments[0]}"
        return case, done.verdict() or self._strange(source, file, arguments, done), done

    def _damage(self, file: Path) -> str:
        dice, kind = self._dice, self._dice.randrange(3 if file.suffix == ".h5" else 2)
        if kind == 0:
            file.write_bytes(mutated(file.read_bytes(), dice))
            return "mutated"
        if kind == 1:
            truncate(file, dice)
            return "truncated"
        flip(file, dice)
        return "flipped"

    def _strange(self, source: Path, file: Path, arguments: Sequence[str], done: Done) -> str:
        """Return whether a command hid the whole run, or gave another result of a checkpoint."""
        if arguments[0] in ("list", "results") and WHOLE not in done.out:
            return "hid the other run"
        if arguments[0] != "eval" or file.suffix != ".h5" or done.status or done.errors:
            return ""
        if source not in self._evaluated:
            self._evaluated[source] = forked(("eval", str(source), "--trust"), self._scratch).out
        return "" if done.out == self._evaluated[source] else "gave another result"


def main() -> int:
    """Run commands, and print the outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.commands", description=__doc__)
    parser.add_argument("--commands", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    statuses, findings = Counter[str](), 0
    with tempfile.TemporaryDirectory() as directory:
        play = Play(options.seed, Path(directory))
        for number in range(1, options.commands + 1):
            case, wrong, done = play.next()
            statuses[f"{case.split()[-1]} {done.status}"] += 1
            if wrong:
                findings += 1
                sys.stdout.write(f"{number} {case}: {wrong}\n{done.errors[-2000:]}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{options.commands} commands, {findings} wrong\n")
    for name, count in sorted(statuses.items()):
        sys.stdout.write(f"{name}: {count}\n")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
