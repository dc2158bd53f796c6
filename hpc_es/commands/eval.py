"""Play noise-free episodes with a trained policy, and say how it does.

The same checkpoint, seed and number of episodes give the same numbers. `task.reward_offset` does not count. Overrides
change the task, such as task.max_episode_steps=200 or task.env_kwargs.gravity=5.
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

from hpc_es.errors import UserError

if TYPE_CHECKING:
    from hpc_es.interfaces import Rows, Task
    from hpc_es.load import Stored


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to play, and what to show."""
    parser.add_argument("path", metavar="RUN_OR_CHECKPOINT", type=Path, help="a run directory or a checkpoint file")
    parser.add_argument("overrides", nargs="*", metavar="task.key=value", help="another setting of the environment")
    parser.add_argument("--episodes", type=_count, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=_seed, default=0, metavar="S", help="of the episodes (default: 0)")
    parser.add_argument("--which", choices=("best", "last"), help="which theta (default: best if there is one)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, everything else on stderr")
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="also film the first of the episodes: a .gif, or .mp4"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the numbers; status 1 if every episode failed. UserError."""
    from hpc_es.load import stored
    from hpc_es.report import video

    if arguments.video:
        video.prepare(arguments.video)  # before a simulator is imported
    with stdout_to_stderr():
        source = changed(stored(arguments.path, arguments.which), arguments.overrides)
        if arguments.video:  # first, as it is what may be impossible here
            video.film(source, seeds(arguments.seed, [0])[0], arguments.video)
        result = evaluate(source, arguments.episodes, arguments.seed)
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else text(result))
    return 1 if result["failed"] == arguments.episodes else 0


def evaluate(source: Stored, episodes: int, seed: int) -> dict[str, Any]:
    """The numbers of so many episodes; returns and lengths are those of episodes that did not fail, or None."""
    from hpc_es.load import single_episodes

    task: Task = single_episodes(source.config.task)
    try:
        rows = play(source, task, episodes, seed)
    finally:
        if hasattr(task, "close"):
            task.close()
    return {
        **statistics(rows),
        "episodes": episodes,
        "generation": source.generation,
        "env_id": getattr(source.config.task, "env_id", source.config.task.kind),
        "which": source.which,
    }


def play(source: Stored, task: Task, episodes: int, seed: int) -> Rows:
    """ROW[episodes], in chunks of a fixed size, as in training; why episodes failed goes to stderr."""
    import numpy as np

    from hpc_es.experiment.generation import evaluation_chunks
    from hpc_es.interfaces import Batch

    assert task.spaces
    policy = source.policy(task.spaces)
    rows: list[Rows] = []
    for chunk in evaluation_chunks(episodes, 0):
        batch = Batch(
            seeds=np.array(seeds(seed, chunk.job_numbers), np.int64)[:, np.newaxis],
            training=False,
            observe=np.zeros(chunk.jobs, np.bool_),
            action_noise_std=0.0,
            action_noise=np.random.default_rng,  # never asked for
        )
        outcome = task.evaluate(source.bind(policy, chunk.jobs), batch, lambda: None)
        rows.append(outcome.rows)
        for failure in outcome.failures:
            sys.stderr.write(f"failed from episode {chunk.first_job} on, {failure}\n")
    joined: Rows = np.concatenate(rows)
    return joined


def seeds(seed: int, episodes: Sequence[int]) -> list[int]:
    """The environment seeds of these episodes, 0 .. 2**31 - 1; block 1, as training's own evaluations have block 0."""
    from hpc_es.keys import Keys, Purpose

    return [Keys(seed).seed31(Purpose.EVALUATION, index=episode, block=1) for episode in episodes]


def statistics(rows: Rows) -> dict[str, Any]:
    """Means over the episodes that did not fail, None where there is none; the standard deviation is that of n."""
    import numpy as np

    good = rows[~np.isnan(rows["return_"])]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    values: dict[str, Any] = dict.fromkeys(names)
    if len(good):
        returns = good["return_"]
        numbers = (returns.mean(), returns.std(), returns.min(), returns.max(), good["length"].mean())
        values = dict(zip(names, map(float, numbers), strict=True))
    return {**values, "failed": len(rows) - len(good)}


def changed(source: Stored, overrides: Sequence[str]) -> Stored:
    """With another task, as the overrides say; ConfigError."""
    if not overrides:
        return source
    from hpc_es.config import resolved, validate
    from hpc_es.schema.yaml_text import override

    for item in overrides:
        if not item.startswith("task.") or "=" not in item:
            raise UserError(f"expected task.key=value, found {item!r}: the policy itself cannot be changed")
    config = validate(override(resolved(source.config), overrides))
    return dataclasses.replace(source, config=config)


def text(result: dict[str, Any]) -> str:
    """For people: a line a number."""
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to below 2**63, found {text!r}")
    return int(text)
