"""Run benchmarks, print their rows, and write benchmarks/results/NAME.json."""

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
    """Run the named benchmarks; the exit status is 1 if a target is missed and --strict is set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"benchmarks to run: {', '.join(NAMES)}; default: all"
    )
    parser.add_argument(
        "--strict", action="store_true", help="end with status 1 if a target is missed"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; expected some of {', '.join(NAMES)}"
        )
    RESULTS.mkdir(exist_ok=True)
    missed = 0
    print(
        f"{platform.node()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: medians; other load distorts them"
    )
    for name in options.names or NAMES:
        started = time.time()
        rows = importlib.import_module(f"benchmarks.{name}").run()
        (RESULTS / f"{name}.json").write_text(
            json.dumps({"rows": rows, "seconds": time.time() - started}, indent=2)
        )
        for row in rows:
            text = "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
            )
            print(f"{name:9s} {text}")
            missed += row.get("met") is False
        sys.stdout.flush()
    return int(bool(missed and options.strict))


if __name__ == "__main__":
    sys.exit(main())
