"""An objective and an environment's wrapper that make trouble while a file says so: `nan`, `raise`
or `hang`.

The file is `trouble` in the directory that HPC_ES_CAMPAIGN names, so that no config differs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from hpc_es.core.data import Array

VARIABLE = "HPC_ES_CAMPAIGN"
_file = Path(os.environ.get(VARIABLE, "."), "trouble")


def trouble() -> str:
    """Content of the file; does not return while it is `hang`."""
    try:
        while (said := _file.read_text()) == "hang":
            time.sleep(0.01)
    except OSError:
        return ""
    if said == "raise":
        raise ValueError("the simulator diverged")
    return said


def cost(x: Array) -> float:
    """An ellipsoid with rotated axes; its last bit depends on all of x."""
    if trouble() == "nan":
        return float("nan")
    time.sleep(0.0005)
    steps = np.cumsum(x - 1) / np.sqrt(np.arange(1, len(x) + 1))
    return float((steps * steps).sum())


def fragile(x: Array) -> float:
    """The same, but one of nine vectors, selected by its digits, always fails."""
    if int(abs(float(x[0])) * 1e6) % 9 == 0:
        raise ValueError("the simulator diverged, as it always does here")
    return cost(x)


def pooled(x: Array) -> float:
    """The same; some vectors are evaluated in a pool of forked workers,
    which it ends by SIGTERM.
    """
    if int(abs(float(x[0])) * 1e6) % 19 == 0:
        with multiprocessing.get_context("fork").Pool(2) as workers:
            return float(workers.map(cost, [x, x])[0])
    return cost(x)


def unruly(x: Array) -> float:
    """The same; for some vectors it forks, starts a thread, prints bytes,
    changes directory or exits.
    """
    match int(abs(float(x[0])) * 1e6) % 23:
        case 0:
            child = os.fork()
            if not child:
                return 0.0  # this is ended with a message, and is not another rank
            os.waitpid(child, 0)
        case 1:
            threading.Thread(target=time.sleep, args=(0.01,)).start()
        case 2:
            os.write(1, b"\xff\x1b")  # neither text nor a line
        case 3:
            os.chdir("/")
        case 4:
            sys.exit(0)
        case 5:
            subprocess.run(["true"], check=True)
        case 6:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case 7:
            random.seed(1)
            np.random.seed(1)
        case 8:
            os._exit(0)
    return cost(x)


def simulate(pipe: Connection, parent: int) -> None:
    """Serve an environment, until it is gone;
    other children of the parent keep its end of the pipe open.
    """
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if pipe.poll(0.2):
                pipe.send(pipe.recv())


class Simulator(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """An environment whose resets ask a daemon process; with `stays` it never closes."""

    def __init__(self, env: Any, stays: bool = False) -> None:
        super().__init__(env)
        self._stays = stays
        self._pipe: Connection | None = None

    def reset(self, **keywords: Any) -> Any:
        if self._pipe is None:
            context = multiprocessing.get_context("fork")
            self._pipe, other = context.Pipe()
            context.Process(target=simulate, args=(other, os.getpid()), daemon=True).start()
        self._pipe.send(1)
        self._pipe.recv()
        return self.env.reset(**keywords)

    def close(self) -> None:
        while self._stays:
            time.sleep(1)
        self.env.close()


class Trouble(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """An environment whose steps fail or hang on demand."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return (observation, float("nan") if trouble() == "nan" else reward, *rest)
