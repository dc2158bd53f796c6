"""CPU time of steps and seeded resets of Atari games without a policy: the task `atari` and `AtariVectorEnv`.

Both play the same episodes with random actions, in 16 lanes of one environment each, in turn. CPU time includes that of
the vector environments' threads.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hpc_es.core.data import Array
from hpc_es.tasks.atari.task import Atari, Options
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes

GAMES = ("pong", "breakout", "seaquest", "freeway")
LANES, STEPS, ROUNDS = 16, 150, 5


class Measured(NamedTuple):
    """Medians of the rounds."""

    step_us: float
    reset_ms: float


def measure(game: str) -> tuple[Measured, Measured]:
    """Return the times of the task and of the vector environment."""
    import ale_py

    task = Atari(Options(game=game, protocol="salimans2017", fire_reset=True))
    limit = task.options.max_frames or 20_000
    vectors = [
        ale_py.AtariVectorEnv(game, 1, num_threads=1, reward_clipping=False, max_num_frames_per_episode=limit)
        for _ in range(LANES)
    ]
    backend, rounds = task.new_backend(), []
    actions = task.spaces.actions.n  # type: ignore[union-attr]
    with backend.chunk(range(LANES)):
        for _ in range(ROUNDS):
            rounds.append((play(Lockstep(backend), actions), play(Vectors(vectors), actions)))
    ours, theirs = ([pair[index] for pair in rounds] for index in (0, 1))
    return tuple(Measured(*map(median, zip(*times, strict=True))) for times in (ours, theirs))  # type: ignore[return-value]


class Lockstep:
    """The lanes of the task's backend."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._running = backend, RunningEpisodes(list(range(LANES)), list(range(LANES)))
        self.observations, self._rewards = np.zeros((LANES, 84, 84, 4), np.uint8), np.zeros(LANES)

    def reset(self, lane: int, seed: int) -> None:
        self.observations[lane] = self._backend.reset(lane, seed)

    def step(self, actions: Array) -> list[int]:
        """Take a step with actions int64[lanes]; return the lanes whose episode ended."""
        ended: list[int] = self._backend.advance(self._running, actions, self.observations, self._rewards).ended
        return ended


class Vectors:
    """A vector environment of one environment per lane."""

    def __init__(self, vectors: list[Any]) -> None:
        self._vectors, self.observations = vectors, np.zeros((LANES, 84, 84, 4), np.uint8)

    def reset(self, lane: int, seed: int) -> None:
        self.observations[lane] = self._vectors[lane].reset(seed=np.array([seed]))[0][0].transpose(1, 2, 0)

    def step(self, actions: Array) -> list[int]:
        """Take a step with actions int64[lanes]; return the lanes whose episode ended."""
        ended = []
        for lane, vector in enumerate(self._vectors):
            observation, _, terminated, truncated, _ = vector.step(actions[lane : lane + 1])
            self.observations[lane] = observation[0].transpose(1, 2, 0)
            if terminated[0] or truncated[0]:
                ended.append(lane)
        return ended


def play(lanes: Lockstep | Vectors, actions: int) -> tuple[float, float]:
    """Return the microseconds of a step of one lane, and the milliseconds of a reset."""
    rng, stepping, resetting, resets = np.random.default_rng(0), 0.0, 0.0, 0
    ended = list(range(LANES))
    for _ in range(STEPS):
        since = time.process_time()
        for lane in ended:
            lanes.reset(lane, seed=resets)
            resets += 1
        resetting += time.process_time() - since
        since = time.process_time()
        ended = lanes.step(rng.integers(actions, size=LANES))
        stepping += time.process_time() - since
    return stepping / (LANES * STEPS) * 1e6, resetting / resets * 1e3


def main() -> None:
    """Print one line per game."""
    for game in GAMES:
        ours, theirs = measure(game)
        text = f"step {ours.step_us:4.0f} us, reset {ours.reset_ms:5.1f} ms"
        print(f"{game:10s} atari: {text}; vector: step {theirs.step_us:4.0f} us, reset {theirs.reset_ms:5.1f} ms")


if __name__ == "__main__":
    main()
