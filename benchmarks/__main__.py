"""Run the benchmarks, print a table, write benchmarks/results/NAME.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

NAMES = (
    "rollouts",
    "mujoco",
    "limits",
    "scaling",
    "update",
    "startup",
    "memory",
    "interpreter",
    "programs",
    "actor_critic",
    "policy_gradient",
)
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run what is asked for; the status is 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--strict", action="store_true", help="end with status 1 if a target is missed")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    RESULTS.mkdir(exist_ok=True)
    missed = 0
    print(f"{platform.node()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: medians; other load spoils them")
    for name in options.names or NAMES:
        started = time.time()
        rows = importlib.import_module(f"benchmarks.{name}").run()
        (RESULTS / f"{name}.json").write_text(json.dumps({"rows": rows, "seconds": time.time() - started}, indent=2))
        for row in rows:
            shown = "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
            print(f"{name:9s} {shown}")
            missed += row.get("met") is False
        sys.stdout.flush()
    return int(bool(missed and options.strict))


if __name__ == "__main__":
    sys.exit(main())
