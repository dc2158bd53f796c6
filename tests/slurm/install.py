"""Is SLURM here? `python -m tests.slurm.install` gets it from the packages of Debian or Ubuntu, as
root.

faketime is for the tests with clocks that disagree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "munged": "munge",
    "faketime": "faketime",
}
APT = ("apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=300")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # where daemons are


def missing() -> list[str]:
    """The packages whose programs are not on the path, sorted."""
    return sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program, path=PATH)}
    )


def install() -> str | None:
    """Install what is missing; returns why that cannot be, or None if all is there."""
    packages = missing()
    if not packages:
        return None
    wanted = f"the packages {', '.join(packages)} are missing"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"{wanted}: as root, apt-get install {' '.join(packages)} (or your system's packages of SLURM and munge)"
    print(f"installing {', '.join(packages)}", flush=True)
    # 1: no services are started
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "--no-install-recommends", *packages]):
        done = subprocess.run(
            [*APT, *arguments], check=False, env=environment, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            return f"{wanted}, and apt-get {arguments[0]} failed"
    return None


if __name__ == "__main__":
    sys.exit(install())
