"""Show what a checkpoint holds.

A run directory means its newest valid checkpoint. `theta_sha256` is the SHA-256 of theta's float32 bytes, little
endian: equal for two runs that have the same parameters to the last bit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_es.experiment.checkpoint import Snapshot


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run or a checkpoint."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the content; CheckpointError where there is no valid checkpoint."""
    from hpc_es.experiment.checkpoint import load
    from hpc_es.experiment.store import find

    path = find(arguments.path)
    content = described(path, load(path))
    sys.stdout.write(json.dumps(content, indent=2) + "\n" if arguments.json else text(content))
    return 0


def described(path: Path, snapshot: Snapshot) -> dict[str, Any]:
    """The content as plain data; `config` is nested as in YAML, every array of the state has its form."""
    from hpc_es.common import found
    from hpc_es.config import parse_resolved, resolved
    from hpc_es.experiment.results import digest

    state, best = snapshot.state, snapshot.best
    named = {f"shared/{name}": array for name, array in state.shared.items()}
    named |= {f"master/{name}": array for name, array in state.master.items()}
    return {
        "path": str(path),
        "generation": state.generation,
        "counters": dict(snapshot.counters),
        "parameters": int(state.theta.size),
        "theta_sha256": digest({"theta": state.theta}),
        "state_sha256": digest({**state.shared, **state.master}),
        "best": {"return": best.return_, "generation": best.generation} if best else None,
        **({"found": found.summary(state.master)} if found.is_in(state.master) else {}),
        "arrays": [
            {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
            for name, array in named.items()
        ],
        "config_hash": snapshot.config_hash,
        "config": resolved(parse_resolved(snapshot.config_text)),
        "provenance": dict(snapshot.provenance),
    }


def text(content: dict[str, Any]) -> str:
    """For people: a line a fact, arrays as a table, the config and the provenance as YAML."""
    import yaml

    lines = []
    for name, value in content.items():
        if name == "arrays":
            lines.append("arrays")
            lines += [f"  {a['name']:28} {a['dtype']}{a['shape']!s:16} {a['bytes']:>12,} bytes" for a in value]
        elif isinstance(value, dict) and name in {"config", "provenance"}:
            body = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
            lines += [name, *("  " + line for line in body.splitlines())]
        else:
            lines.append(f"{name:14} {_shown(value)}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)
