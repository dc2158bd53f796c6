"""Show what a checkpoint holds.

A run directory means its newest valid checkpoint, and `run` says how the run stands: running, killed (its process is
gone, and has not said why), finished, interrupted or failed; of a directory of repetitions, which are there is listed.
Between whole checkpoints `since` says which the last whole one is, and from how many bytes how many generations have
learned since.
`theta_sha256` is the SHA-256 of theta's float32 bytes, little endian: equal for two runs that have the same parameters
to the last bit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_es.storage.checkpoint import Since, Snapshot


def arguments(parser: argparse.ArgumentParser) -> None:
    """A run or a checkpoint, or repetitions."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the content; CheckpointError where there is no valid checkpoint."""
    from hpc_es.storage import results
    from hpc_es.storage.checkpoint import load
    from hpc_es.storage.checkpoint_directory import find
    from hpc_es.storage.status import STATUS, run_state, state_text

    if results.holds_repetitions(arguments.path):
        there = results.listed(arguments.path)
        listed = json.dumps({"path": str(arguments.path), "repetitions": there}, indent=2) + "\n"
        sys.stdout.write(listed if arguments.json else results.repetitions_text(arguments.path))
        return 0
    path = find(arguments.path, whole=False)
    content = described(path, load(path))
    if (arguments.path / STATUS).exists():
        state = run_state(arguments.path)
        content = {"run": state if arguments.json else state_text(state), **content}
    sys.stdout.write(json.dumps(content, indent=2) + "\n" if arguments.json else inspect_text(content))
    return 0


def described(path: Path, snapshot: Snapshot) -> dict[str, Any]:
    """The content as plain data, with the form of every array; `config` as in YAML, nothing it names is imported."""
    from hpc_es.config.resolved import plain_data
    from hpc_es.programs import best_programs
    from hpc_es.report.best_vector import described_best
    from hpc_es.storage.results import digest

    state, best = snapshot.state, snapshot.best
    config = plain_data(snapshot.config_text)
    programs = (
        {**best_programs.summary(state.master), **_programs(path, snapshot)}
        if best_programs.is_in(state.master)
        else None
    )
    named = {f"shared/{name}": array for name, array in state.shared.items()}
    named |= {f"master/{name}": array for name, array in state.master.items()}
    return {
        "path": str(path),
        "generation": snapshot.generation,
        **({"since": _leading_on(since)} if (since := snapshot.since) else {}),
        "counters": dict(snapshot.counters),
        "parameters": int(state.theta.size),
        "theta_sha256": since.theta_sha256 if since else digest({"theta": state.theta}),
        "state_sha256": since.state_sha256 if since else digest({**state.shared, **state.master}),
        "best": {"return": best.return_, "generation": best.generation} if best else None,
        **({"found": programs} if programs else {}),
        **described_best(snapshot.outcome, config),
        "arrays": [
            {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
            for name, array in named.items()
        ],
        "config_hash": snapshot.config_hash,
        "config": config,
        "provenance": dict(snapshot.provenance),
    }


def _leading_on(since: Since) -> dict[str, Any]:
    """Return the whole checkpoint that one in between leads on from, and with how much."""
    size = sum(map(len, since.learned_from))
    return {"checkpoint": since.base, "generations": len(since.learned_from), "bytes": size}


def _programs(path: Path, snapshot: Snapshot) -> dict[str, int]:
    """Return how many correct programs were listed when the checkpoint was written, if the list lies where it was."""
    from hpc_es.programs import log

    run_dir, length = path.parent.parent, snapshot.file_lengths.get(log.NAME, 0)
    if length and not (run_dir / log.NAME).exists():
        return {}
    return {"correct_programs": sum(1 for _ in log.read_programs(run_dir, length))}


def inspect_text(content: dict[str, Any]) -> str:
    """Return the content for people: one fact per line, arrays as a table, the config and the provenance as YAML."""
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
