"""The packages that are compared: their dependencies, their tasks and their commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.peers.works import CORES, Work

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Contender:
    """A package, with its program and the content of its virtual environment."""

    name: str
    program: str  # a module of benchmarks.peers.programs
    libraries: tuple[str, ...]  # of environments that it supports
    packages: tuple[str, ...]  # for pip; the version of the first one is reported
    mpi: bool = False
    variables: dict[str, str] = field(default_factory=lambda: dict(ONE_THREAD))

    def takes(self, work: Work) -> bool:
        """Return whether the package supports the environment."""
        return work.library in self.libraries

    def python(self, venvs: Path) -> Path:
        """Return the Python of the virtual environment,
        which is created or updated if necessary.
        """
        directory = venvs / self.name
        python, stamp = directory / "bin/python", directory / "installed.json"
        if not stamp.exists() or json.loads(stamp.read_text()) != list(self.packages):
            print(f"installing {self.name}: {' '.join(self.packages)}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *self.packages], check=True, cwd=ROOT)
            stamp.write_text(json.dumps(list(self.packages)))
        return python

    def version(self, venvs: Path) -> str:
        """Return the version of the first package."""
        package = (
            "hpc_es"
            if self.name.startswith("hpc_es")
            else self.packages[0].partition("==")[0].partition("[")[0]
        )
        program = f"from importlib.metadata import version; print(version({package!r}))"
        done = subprocess.run(
            [self.python(venvs), "-c", program], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def command(self, venvs: Path, work: Work, seconds: float) -> list[str]:
        """Return the command line of a run."""
        python = self.python(venvs)
        program = [
            str(python),
            "-m",
            f"benchmarks.peers.programs.{self.program}",
            json.dumps(work.arguments(seconds)),
        ]
        return [str(python.parent / "mpiexec"), "-n", str(CORES), *program] if self.mpi else program

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}


CONTENDERS = (
    Contender("hpc_es", "hpc_es_train", ("gymnasium",), ("-e.[mpi,mujoco]",), mpi=True),
    Contender("hpc_es_jax", "hpc_es_train", ("gymnax", "brax"), ("-e.[mpi,jax]",), mpi=True),
    Contender(
        "evotorch",
        "evotorch_pgpe",
        ("gymnasium",),
        ("evotorch==0.6.1", "torch==2.13.0", "gymnasium[mujoco]"),
    ),
    Contender("envpool", "envpool_es", ("gymnasium",), ("envpool==1.2.5", "numpy")),
    Contender(
        "sb3_contrib",
        "sb3_ars",
        ("gymnasium",),
        ("sb3-contrib", "torch==2.13.0", "gymnasium[mujoco]"),
    ),
    Contender("pycma", "pycma_pool", ("gymnasium",), ("cma==4.5.0", "gymnasium[mujoco]")),
    Contender(
        "evosax",
        "evosax_open_es",
        ("gymnax", "brax"),
        ("evosax==0.3.2", "gymnax==1.0.1", "brax==0.14.2", "six"),
        variables={},  # one process, whose threads share the cores
    ),
)
