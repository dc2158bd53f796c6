"""CPU time of steps and seeded resets of Atari games: the task `atari` and `AtariVectorEnv`; and of
training steps.

    python -m benchmarks.atari             # steps and resets without a policy
    python -m benchmarks.atari --training  # env-steps per second and core of cnn with virtual batch
                                           normalisation
    python -m benchmarks.atari --random    # returns of random actions in Pong

Without a policy both play the same episodes with random actions, in 16 lanes of one environment
each, in turn. CPU time includes that of the vector environments' threads. In training, chunks of 16
candidates play Pong with the network of `configs/es_pong.yaml`, each with its own weights, for 500
steps; perturbations, the virtual batch of each candidate and resets are included. It needs the
extra `jax`.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.jobs import ROOT
from hpc_es.config.loading import load
from hpc_es.core.data import NO_FITNESS, ROW, Array
from hpc_es.mpi.world import World
from hpc_es.tasks.atari.task import Atari, Options
from hpc_es.tasks.episodes.environment_backend import RunningEpisodes
from hpc_es.training.build import build_parts, build_task

GAMES = ("pong", "breakout", "seaquest", "freeway")
LANES, STEPS, ROUNDS = 16, 150, 5
TRAINING_ROUNDS = 3


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
        ale_py.AtariVectorEnv(
            game, 1, num_threads=1, reward_clipping=False, max_num_frames_per_episode=limit
        )
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
        self._backend, self._running = (
            backend,
            RunningEpisodes(list(range(LANES)), list(range(LANES))),
        )
        self.observations, self._rewards = np.zeros((LANES, 84, 84, 4), np.uint8), np.zeros(LANES)

    def reset(self, lane: int, seed: int) -> None:
        self.observations[lane] = self._backend.reset(lane, seed)

    def step(self, actions: Array) -> list[int]:
        """Take a step with actions int64[lanes]; return the lanes whose episode ended."""
        ended: list[int] = self._backend.advance(
            self._running, actions, self.observations, self._rewards
        ).ended
        return ended


class Vectors:
    """A vector environment of one environment per lane."""

    def __init__(self, vectors: list[Any]) -> None:
        self._vectors, self.observations = vectors, np.zeros((LANES, 84, 84, 4), np.uint8)

    def reset(self, lane: int, seed: int) -> None:
        self.observations[lane] = (
            self._vectors[lane].reset(seed=np.array([seed]))[0][0].transpose(1, 2, 0)
        )

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


def training_rates(normalisation: str) -> list[tuple[float, float]]:
    """Return env-steps per CPU second, and seconds per chunk,
    of `TRAINING_ROUNDS` chunks on one rank.
    """
    overrides = [
        "noise={kind: counter}",
        "task.max_frames=2000",
        f"policy.normalisation={normalisation}",
    ]
    config = load(ROOT / "configs" / "es_pong.yaml", [*overrides, f"mpi.chunk_size={LANES}"])
    parts = build_parts(config, World("none"), build_task(config))
    algorithm: Any = parts.algorithm
    state, rates = algorithm.initial(), []
    for chunk in algorithm.ask(state, 0, np.zeros(0, ROW), NO_FITNESS)[: TRAINING_ROUNDS + 1]:
        since = time.process_time()
        outcome = algorithm.evaluate(state, chunk, lambda: None)
        seconds = time.process_time() - since
        rates.append((float(outcome.rows["length"].sum()) / seconds, seconds))
    return rates[1:]  # the first chunk compiles and loads the games


def random_returns(max_frames: int, episodes: int) -> list[float]:
    """Return the returns of episodes of Pong with random actions,
    which end after `max_frames` frames at the latest.
    """
    environment = Atari(
        Options(game="pong", protocol="salimans2017", max_frames=max_frames)
    ).environment()
    rng, returns = np.random.default_rng(0), []
    for seed in range(episodes):
        environment.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, is_over, is_cut, _ = environment.step(
                rng.integers(environment.action_space.n)
            )
            total, ended = total + reward, is_over or is_cut
        returns.append(total)
    return returns


def main() -> None:
    """Print one line per game, per normalisation or per time limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.atari", description=__doc__)
    parser.add_argument("--training", action="store_true", help="measure training steps instead")
    parser.add_argument(
        "--random", action="store_true", help="measure the returns of random actions instead"
    )
    options = parser.parse_args()
    if options.random:
        for max_frames, episodes in ((1_200, 40), (20_000, 12)):
            returns = random_returns(max_frames, episodes)
            text = f"{np.mean(returns):.1f} +- {np.std(returns):.1f} in {episodes} episodes"
            print(f"pong, random actions, at most {max_frames:,} frames: {text}", flush=True)
        return
    if options.training:
        for normalisation in ("virtual_batch", "none"):
            rates = training_rates(normalisation)
            low, middle, high = (f(rate for rate, _ in rates) for f in (min, median, max))
            text = f"{middle:,.0f} env-steps per second and core ({low:,.0f} to {high:,.0f} in {len(rates)} chunks)"
            print(f"pong, cnn, preset atari, normalisation {normalisation}: {text}", flush=True)
        return
    for game in GAMES:
        ours, theirs = measure(game)
        text = f"step {ours.step_us:4.0f} us, reset {ours.reset_ms:5.1f} ms"
        print(
            f"{game:10s} atari: {text}; vector: step {theirs.step_us:4.0f} us, reset {theirs.reset_ms:5.1f} ms"
        )


if __name__ == "__main__":
    main()
