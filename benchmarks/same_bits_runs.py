"""Run cases of `same_bits` with two versions of hpc_es in separate processes,
and cache those of the older version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import MPIEXEC, command
from benchmarks.same_bits_cases import Case, on_one_rank, short_words

LIMIT_SECONDS, GRACE_SECONDS = 300, 10  # for a job, and for its end after SIGTERM
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LAUNCHERS = ("PMI_", "PMIX_", "OMPI_", "HYDRA_", "SLURM_", "MPI_LOCAL", "MPIEXEC_")
PACKAGES = (
    "numpy",
    "gymnasium",
    "mujoco",
    "box2d",
    "tensorflow",
    "keras",
    "numba",
    "jax",
)  # results depend on their versions and on the processor
FILES = [
    Path(__file__).with_name(f"same_bits_{name}.py")
    for name in ("faults", "kinds", "objectives", "programs")
]


class JobError(Exception):
    """A run failed, or did not end in time."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of a version of hpc_es."""

    path: Path
    ranks: int

    def run(
        self,
        case: Case,
        config: Path,
        output: Path,
        generations: int,
        begins_from: Path | None = None,
    ) -> float:
        """Run a case to its end and return the seconds taken; JobError if it fails."""
        ranks = 1 if on_one_rank(case, config) else self.ranks
        since = time.perf_counter()
        with tempfile.TemporaryDirectory() as cwd:
            for path in FILES:
                shutil.copy(path, cwd)
            if case.program:
                job = [
                    str(MPIEXEC),
                    "-n",
                    str(ranks),
                    sys.executable,
                    FILES[-1].name,
                    case.program,
                    str(output),
                ]
            else:
                words = case.arguments(short_words(config), generations)
                job = command(
                    ranks,
                    config,
                    output,
                    *words,
                    *([f"policy.init_from={begins_from}"] if begins_from else []),
                )
            finish(job, self.environment(), cwd)
        return time.perf_counter() - since

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which Python imports this version,
        on one thread.
        """
        ours = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        return {
            **ours,
            **dict.fromkeys(THREADS, "1"),
            "PYTHONPATH": str(self.path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def imported(self) -> Path:
        """Return the path from which `import hpc_es` imports, to detect an installed version."""
        program = [sys.executable, "-c", "import hpc_es; print(hpc_es.__file__)"]
        with tempfile.TemporaryDirectory() as cwd:
            done = subprocess.run(
                program, cwd=cwd, env=self.environment(), check=True, capture_output=True, text=True
            )
        return Path(done.stdout.strip())

    def label(self) -> str:
        """Return the commit, with a digest of uncommitted changes; without git, the path."""
        try:
            commit = self._git("rev-parse", "HEAD").strip()[:12]
            changes = self._git("diff", "HEAD") + self._git(
                "status", "--porcelain", "--untracked-files=normal"
            )
        except (OSError, subprocess.CalledProcessError):
            return str(self.path).strip("/").replace("/", "_")
        return f"{commit}-{_short(changes)}" if changes else commit

    def _git(self, *words: str) -> str:
        # The ceiling, so that a copy without .git inside another repository is not taken for a
        # commit of it.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.path.parent)}
        job = ["git", "-C", str(self.path), *words]
        return subprocess.run(
            job, env=environment, check=True, capture_output=True, text=True
        ).stdout


@dataclass(frozen=True)
class Cache:
    """Cached runs of the older version, one per commit, case, machine and set of packages."""

    checkout: Checkout
    directory: Path  # of this commit, machine and set of packages
    cases: Mapping[str, Case]
    locks: Mapping[str, threading.Lock]  # one per case

    @staticmethod
    def under(cache: Path, checkout: Checkout, cases: Mapping[str, Case]) -> Cache:
        """Return the cached runs of this version in `cache`."""
        directory = cache / f"{checkout.label()}-{_environment_digest()}"
        return Cache(checkout, directory, cases, {name: threading.Lock() for name in cases})

    def config(self, case: Case) -> Path:
        """Return the config of a case, with which both versions run."""
        return self.checkout.path / case.config

    def begins_from(self, case: Case) -> Path | None:
        """Return the run directory from whose theta a case starts."""
        return self.run(self.cases[case.begins_from]) / "whole" if case.begins_from else None

    def run(self, case: Case) -> Path:
        """Return the directory with the run "whole" and, for a case that is resumed,
        the run "part".
        """
        path = self.directory / f"{case.name}-{self._key(case)}"
        parts = {"whole": case.generations} | ({"part": case.resumed_at} if case.resumed_at else {})
        with self.locks[case.name]:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as directory:
                    new = Path(directory) / "new"
                    for name, generations in parts.items():
                        self.checkout.run(
                            case, self.config(case), new / name, generations, self.begins_from(case)
                        )
                    new.rename(path)
        return path

    def _key(self, case: Case) -> str:
        start = self._key(self.cases[case.begins_from]) if case.begins_from else ""
        files = [path.read_text() for path in FILES]
        if case.program:
            return _short(json.dumps([case.program, files]))
        words = case.arguments(short_words(self.config(case)), case.generations)
        return _short(
            json.dumps([self.config(case).read_text(), words, case.resumed_at, start, files])
        )


def again(cache: Cache, checkout: Checkout, case: Case, output: Path) -> float:
    """Run a case with the newer version, or resume the run of the older one;
    return the seconds taken.
    """
    if case.resumed_at:
        shutil.copytree(cache.run(case) / "part", output)
    case = dataclasses.replace(case, words=case.newer_words or case.words)
    return checkout.run(case, cache.config(case), output, case.generations, cache.begins_from(case))


def finish(job: list[str], environment: Mapping[str, str], cwd: str) -> None:
    """Run a job to its end; JobError if it fails or takes longer than LIMIT_SECONDS,
    after which it is killed.
    """
    process = subprocess.Popen(
        job, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise JobError(f"no result within {LIMIT_SECONDS} s") from None
    finally:
        if process.poll() is None:
            process.terminate()  # mpiexec ends its ranks
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:  # on a busy machine
                process.kill()
                process.wait()
    if process.returncode:
        last = " | ".join(output.strip().splitlines()[-6:])
        raise JobError(f"status {process.returncode}: {last}")


def _environment_digest() -> str:
    """Return a digest of the processor, the version of Python and those of PACKAGES."""
    versions = [sys.version]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    return _short(
        "\n".join(
            [*versions, *dict.fromkeys(line for line in lines if line.startswith("model name"))]
        )
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
