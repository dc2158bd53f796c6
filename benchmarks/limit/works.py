"""What is measured: a bare loop and the job that does the same work with default settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

EPISODES, EVALUATIONS = "timesteps_this_generation", "evaluations_this_generation"
SCORES = "episodes_this_generation"  # of models
AWK = "BEGIN {for (i = 0; i < 170000; i++) s += i; print 1 > ARGV[2]}"  # 5 ms
PROGRAM = ["awk", AWK, "{parameters}", "{result}"]
PARTS = "benchmarks.limit.parts"
RANK_1 = {"kind": "counter", "rank": 1}


class Work(NamedTuple):
    """A row of the table."""

    path: str
    name: str
    loop: str  # of `bare`
    arguments: Mapping[str, Any]  # of the loop
    config: Mapping[str, Any]  # of the job
    unit: str
    target: float
    blocks: tuple[int, ...] = ()  # sizes of calls of the bare loop, of which the fastest counts


def config(
    task: Mapping[str, Any], population: int, hidden: int = 0, **sections: Any
) -> dict[str, Any]:
    """Return the config of a job."""
    algorithm = {"kind": "es", "population_size": population, "optimizer": {"learning_rate": 0.02}}
    policy = {"policy": {"kind": "mlp", "hidden_dims": [hidden, hidden]}} if hidden else {}
    quiet = {"evaluation": {"interval": 0}, "report": {"plot_interval_seconds": 0}}
    return {"task": task, **policy, "algorithm": algorithm, **quiet, **sections}


def compiled() -> Iterator[Work]:
    """Yield compiled environments."""
    environments = (
        ("CartPole-v1", 500, False),
        ("Pendulum-v1", 200, False),
        ("Breakout-MinAtar", 500, True),
    )
    auto = {"lanes": "auto", "jobs_per_call": "auto"}
    for env_id, steps, resets in environments:
        for population in (256, 1024):
            task = {"kind": "jax_episodes", "env_id": f"gymnax:{env_id}", **auto}
            arguments = {
                "environment": env_id,
                "jobs": population,
                "hidden": 64,
                "steps": steps,
                "resets": resets,
            }
            job = config(task, population, 64, noise={"kind": "table", "table_size": 5_000_000})
            blocks = (64, 256, 1024)
            work = Work(
                "compiled",
                f"{env_id}, {population}",
                "gymnax",
                arguments,
                job,
                EPISODES,
                0.85,
                blocks,
            )
            yield work
            if env_id == "Pendulum-v1" and population == 1024:
                yield work._replace(
                    name=f"{env_id}, {population}, rank 1", config={**job, "noise": RANK_1}
                )
    task = {
        "kind": "jax_episodes",
        "env_id": "brax:ant",
        "env_kwargs": {"backend": "spring"},
        **auto,
    }
    job = config(
        {**task, "max_episode_steps": 100},
        256,
        64,
        noise={"kind": "table", "table_size": 5_000_000},
    )
    arguments = {"environment": "ant", "jobs": 256, "hidden": 64, "steps": 100}
    yield Work("compiled", "Brax ant, 256", "brax", arguments, job, EPISODES, 0.85, (64, 256))


def native() -> Iterator[Work]:
    """Yield environments that are stepped as arrays by NumPy."""
    for env_id, hidden, population in (
        ("CartPole-v1", 64, 64),
        ("Acrobot-v1", 64, 64),
        ("Pendulum-v1", 64, 64),
        ("Pendulum-v1", 64, 1024),
        ("Pendulum-v1", 256, 512),
    ):
        job = config(
            {"env_id": env_id}, population, hidden, noise={"kind": "table", "table_size": 5_000_000}
        )
        arguments = {"environment": env_id, "hidden": hidden}
        name = f"{env_id}, 2 x {hidden}, {population}"
        blocks = tuple(size for size in (16, 64, 256) if size <= population)
        yield Work("numpy", name, "numpy", arguments, job, EPISODES, 0.85, blocks)


def objectives() -> Iterator[Work]:
    """Yield functions, a program and models."""
    for name, function, target in (
        ("10 us", "ten_microseconds", 0.5),
        ("1 ms", "one_millisecond", 0.95),
    ):
        path = f"{PARTS}:{function}"
        job = config({"kind": "function", "function": path, "dimension": 20}, 64)
        yield Work(
            "function", name, "function", {"name": path, "size": 20}, job, EVALUATIONS, target
        )
    job = config({"kind": "command", "command": PROGRAM, "dimension": 20}, 64)
    yield Work("command", "5 ms", "command", {"words": PROGRAM, "size": 20}, job, EVALUATIONS, 0.9)


def models() -> Iterator[Work]:
    """Yield models."""
    for name, model, target in (
        ("10^4 parameters", "small_model", 0.8),
        ("10^6 parameters", "large_model", 0.9),
    ):
        path = f"{PARTS}:{model}"
        job = config(
            {"kind": "model", "model": path, "jobs_per_call": "auto"},
            64,
            noise={"kind": "table", "table_size": 5_000_000},
        )
        yield Work("model", name, "model", {"name": path}, job, SCORES, target, (8, 64))


def atari() -> Iterator[Work]:
    """Yield a game of Atari with a small network."""
    task = {"kind": "atari", "game": "pong", "max_frames": 2000}
    job = config(task, 16, policy={"kind": "cnn", "preset": "minatar"})
    yield Work("atari", "Pong", "atari", {"game": "pong"}, job, EPISODES, 0.0)


PATHS = {
    "compiled": compiled,
    "numpy": native,
    "objectives": objectives,
    "model": models,
    "atari": atari,
}
