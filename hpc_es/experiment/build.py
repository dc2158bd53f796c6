"""From a config to the parts of an experiment: task, policy, noise, algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc_es.common.normaliser import Moments
from hpc_es.config import Config
from hpc_es.errors import ConfigError
from hpc_es.interfaces import Algorithm, Float32, Noise, Policy, State, Task
from hpc_es.keys import Keys
from hpc_es.kinds import module
from hpc_es.mpi.world import World
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.table import TableNoise, check_size, fill


@dataclass(frozen=True)
class Parts:
    """What an experiment is made of, on one rank."""

    task: Task
    policy: Policy | None
    noise: Noise | None
    algorithm: Algorithm


def task_and_policy(config: Config, repetition: int = 0) -> tuple[Task, Policy | None]:
    """The cheap half: it finds unknown environments, and parts that do not fit each other; ConfigError."""
    task: Task = module("tasks", config.task.kind).build(config.task, repetition)
    policy: Policy | None = None
    if config.policy is not None and task.spaces is not None:
        policy = module("policies", config.policy.kind).build(config.policy, task.spaces)
    problems = list(module("algorithms", config.algorithm.kind).misfits(config.algorithm, task, policy))
    if task.spaces is None and config.stop.target_return is not None:
        text = f"is a return of evaluation episodes, which the task {config.task.kind} has not"
        problems.append(("stop.target_return", text))
    if config.policy is not None and task.spaces is None:
        problems.append(("policy", f"nothing acts in the task {config.task.kind}: expected null, or no such key"))
    if problems:
        task.close()
        raise ConfigError(problems)
    if policy is not None and perturbs(config) and config.noise.kind == "table":
        check_size(config.noise.table_size, policy.size)
    return task, policy


def perturbs(config: Config) -> bool:
    """Whether the algorithm wants noise."""
    wanted: bool = module("algorithms", config.algorithm.kind).NOISE
    return wanted


def uses_tensorflow(config: Config) -> bool:
    """Whether the policy or the algorithm computes with it."""
    backend = getattr(config.policy, "backend", "")
    return bool(backend == "tensorflow" or module("algorithms", config.algorithm.kind).TENSORFLOW)


def parts(
    config: Config, world: World, task: Task, policy: Policy | None, repetition: int = 0, table: Float32 | None = None
) -> Parts:
    """All parts; every rank of the world calls this, since a node's ranks fill the noise table together.

    `table` is that of `noise_table`, where it is there already.
    """
    keys = Keys(config.seed, repetition)
    noise: Noise | None = None
    if policy is not None and perturbs(config):
        noise = CounterNoise(keys, policy.size)
        if config.noise.kind == "table":
            noise = TableNoise(noise_table(config, world) if table is None else table, keys, policy.size)
    build = module("algorithms", config.algorithm.kind).build
    algorithm: Algorithm = build(config.algorithm, task, policy, noise, keys, config.mpi.chunk_size)
    return Parts(task, policy, noise, algorithm)


def noise_table(config: Config, world: World) -> Float32:
    """The table of `noise: {kind: table}`, one a node and the same for all repetitions; every rank calls this."""
    table = world.shared_array("noise", config.noise.table_size, np.float32)
    part, count = world.filling(table)
    fill(table, Keys(config.seed), part, count)
    world.node_barrier()
    frozen: Float32 = table.view()
    frozen.flags.writeable = False
    return frozen


def source_of(path: str, size: int) -> State:
    """The state of the run or checkpoint that `policy.init_from` names; ConfigError if theta is of another size."""
    from hpc_es.experiment.checkpoint import load
    from hpc_es.experiment.store import find

    source = load(find(Path(path))).state
    theta = source.shared.get("theta")
    if theta is None or theta.shape != (size,):
        found = "none" if theta is None else str(theta.size)
        text = f"expected {size} parameters, found {found} in {path}: the networks differ"
        raise ConfigError([("policy.init_from", text)])
    return source


def started_from(state: State, source: State) -> State:
    """`state` with the theta of `source`, and what else both have: a value head, observation statistics."""
    shared, master = dict(state.shared), dict(state.master)
    for name, array in state.shared.items():
        if name in source.shared and source.shared[name].shape == array.shape:
            shared[name] = source.shared[name]
    old = source.master.get("observation_sum")
    if old is not None and "observation_sum" in master and old.shape == master["observation_sum"].shape:
        moments = Moments.of(source.master)
        master.update(moments.arrays())
        shared.update(observation_mean=moments.mean(), observation_std=moments.deviation())
    return replace(state, shared=shared, master=master)
