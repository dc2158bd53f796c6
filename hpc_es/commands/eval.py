"""Play noise-free episodes with a trained policy, and say how it does.

The same checkpoint, seed and number of episodes give the same numbers. `task.reward_offset` does not count. Overrides
change the task, such as task.max_episode_steps=200 or task.env_kwargs.gravity=5. With --all every saved snapshot is
evaluated; under MPI (mpiexec -n 4 python -m hpc_es eval RUN --all) the ranks share them, with the same numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_es.commands import TRUST
from hpc_es.core.arguments import whole_number
from hpc_es.core.errors import UserError

if TYPE_CHECKING:
    from hpc_es.api.evaluate import Asked
    from hpc_es.report.saved_policy import StoredPolicy


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to play, and what to show."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("overrides", nargs="*", metavar="task.key=value", help="another setting of the environment")
    parser.add_argument("--episodes", type=whole_number, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=_seed, default=0, metavar="S", help="of the episodes (default: 0)")
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: that of better evaluation)")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, everything else on stderr")
    parser.add_argument(
        "--actions",
        choices=("greedy", "sampled"),
        default="greedy",
        help="of a policy with probabilities (actor_critic): the most probable action, or drawn (default: greedy)",
    )
    parser.add_argument("--all", action="store_true", help="all checkpoints of the run and best.h5, as CSV")
    parser.add_argument("--output", type=Path, metavar="FILE", help="of --all: the CSV file (default: stdout)")
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="also film the first of the episodes: a .gif, or .mp4"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the numbers; status 1 if every episode failed. UserError."""
    from hpc_es.report import video

    _require_that_they_fit(arguments)
    if arguments.all:
        return _all(arguments)
    if arguments.video:
        video.prepare(arguments.video)  # before a simulator is imported
    from hpc_es.api.evaluate import evaluate, seeds
    from hpc_es.report.saved_policy import read_policy, require_stochastic

    with stdout_to_stderr():
        source = changed(read_policy(arguments.path, arguments.which, arguments.trust), arguments.overrides)
        if arguments.actions == "sampled":
            require_stochastic(source.config)
        if arguments.video:  # first, as it is what may be impossible here
            video.film(source, seeds(arguments.seed, [0])[0], arguments.video)
        result = evaluate(source, _asked(arguments))
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else evaluation_text(result))
    return 1 if result["failed"] == arguments.episodes else 0


def _require_that_they_fit(arguments: argparse.Namespace) -> None:
    for name in ("which", "json", "video"):
        if arguments.all and getattr(arguments, name):
            raise UserError(f"--all writes a table of all snapshots: leave --{name} out")
    if arguments.output and not arguments.all:
        raise UserError("--output is for the table of --all: leave it out")
    if arguments.video and arguments.actions == "sampled":
        raise UserError("--video shows greedy actions: leave --actions sampled out")


def _asked(arguments: argparse.Namespace) -> Asked:
    from hpc_es.api.evaluate import Asked

    return Asked(arguments.episodes, arguments.seed, arguments.actions)


def _all(arguments: argparse.Namespace) -> int:
    """Evaluate every snapshot on all ranks, inside the guard; rank 0 writes the table."""
    from hpc_es.mpi.guard import guarded

    def body() -> int:
        from hpc_es.api.evaluate import evaluate_all, prepare_all, table
        from hpc_es.mpi.connect import connect
        from hpc_es.storage.files import write_text
        from hpc_es.training.collective import CollectiveExit, on_rank_0

        def overridden(source: StoredPolicy) -> StoredPolicy:
            return changed(source, arguments.overrides)

        world, trust = connect(), arguments.trust
        try:
            with stdout_to_stderr():
                _, prepared = on_rank_0(world, lambda: prepare_all(arguments.path, overridden, trust), dict)
        except CollectiveExit as ended:
            if world.rank == 0:
                sys.stderr.write(f"hpc-es: {ended.reason.text}\n")
            return ended.reason.status
        with stdout_to_stderr():
            rows = evaluate_all(world, prepared, _asked(arguments), overridden, trust)
        if world.rank == 0 and arguments.output:
            write_text(arguments.output, table(rows))
        elif world.rank == 0:
            sys.stdout.write(table(rows))
        return 1 if all(row["failed"] == arguments.episodes for row in rows) else 0

    guarded(body)


def changed(source: StoredPolicy, overrides: Sequence[str]) -> StoredPolicy:
    """With another task, as the overrides say; ConfigError."""
    if not overrides:
        return source
    from hpc_es.config.loading import validate
    from hpc_es.config.resolved import resolved
    from hpc_es.config.yaml_text import override

    for item in overrides:
        if not item.startswith("task.") or "=" not in item:
            raise UserError(f"expected task.key=value, found {item!r}: the policy itself cannot be changed")
    config = validate(override(resolved(source.config), overrides))
    return dataclasses.replace(source, config=config)


def evaluation_text(result: dict[str, Any]) -> str:
    """Return the numbers for people, one per line."""
    return "".join(f"{name:12} {_shown(value)}\n" for name, value in result.items())


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What environments print, from Python or C, goes to stderr: stdout is for the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to below 2**63, found {text!r}")
    return int(text)
