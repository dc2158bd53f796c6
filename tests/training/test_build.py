"""Compatibility of tasks, policies and algorithms, and rows with columns of an algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from hpc_es.backends.jax import Jax
from hpc_es.config.loading import validate
from hpc_es.config.registry import module
from hpc_es.core.data import CORRECT, SIGN_RETURN, Column, row_dtype
from hpc_es.core.declarations import Needs
from hpc_es.core.errors import ConfigError
from hpc_es.devices import jax_setup
from hpc_es.devices.decision import DeviceRequest
from hpc_es.mpi.world import World
from hpc_es.training.build import build_parts, build_task, cutting_of
from hpc_es.training.compatibility import device_mismatches, device_request, device_warnings

SURVIVAL = {"kind": "episodes", "env_id": "tests.helpers.toys:Survival-v0"}
PROGRAMS = {"kind": "programs", "name": "reverse"}


def messages(**sections: Any) -> list[str]:
    """The messages about an incompatible experiment, a line per problem."""
    with pytest.raises(ConfigError) as error:
        build_task(validate({"noise": {"table_size": 10_000}, **sections}))
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    ("task", "algorithm", "searched", "tasks", "algorithms"),
    [
        (
            PROGRAMS,
            "es",
            "vectors",
            ["bandits", "episodes"],
            ["ga", "policy_gradient", "random_search"],
        ),
        (
            PROGRAMS,
            "actor_critic",
            "trajectories",
            ["bandits", "episodes"],
            ["ga", "policy_gradient", "random_search"],
        ),
        (SURVIVAL, "ga", "programs", ["programs"], ["actor_critic", "es"]),
        ({"kind": "bandits"}, "random_search", "programs", ["programs"], ["actor_critic", "es"]),
    ],
)
@pytest.mark.satellite("programs", "bandits", "actor_critic")
def test_unsupported_task_is_reported_with_the_supported_ones(
    task: dict[str, Any], algorithm: str, searched: str, tasks: list[str], algorithms: list[str]
) -> None:
    lines = messages(task=task, algorithm={"kind": algorithm})
    start = f"task.kind: is '{task['kind']}', but the algorithm '{algorithm}' searches {searched}: expected "
    assert lines[0].startswith(start), lines
    first, second = lines[0].removeprefix(start).split(", or algorithm.kind: ")
    assert set(tasks) <= set(first.replace("'", "").split(" or ")), first
    assert set(algorithms) <= set(second.replace("'", "").split(" or ")), second
    assert repr(task["kind"]) not in first and repr(algorithm) not in second


@pytest.mark.satellite("programs")
def test_policy_must_exist_only_if_the_task_needs_it() -> None:
    config = validate({"task": SURVIVAL, "algorithm": {"kind": "es"}})
    with pytest.raises(
        ConfigError, match="policy: is null, but the task 'episodes' needs a policy"
    ):
        build_task(dataclasses.replace(config, policy=None))
    lines = messages(
        task=PROGRAMS, policy={"kind": "mlp"}, algorithm={"kind": "ga"}, stop={"target_return": 1.0}
    )
    assert lines == [
        "policy: the task 'programs' has no policy: expected null, or no such key",
        "stop.target_return: the task 'programs' has no returns of evaluation episodes: expected null",
    ]


@pytest.mark.satellite("programs")
def test_gradient_algorithms_refuse_tasks_with_a_custom_fitness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hpc_es.programs.task import Programs

    monkeypatch.setattr(Programs, "fitness", lambda self, rows, carried: rows["correct"])
    monkeypatch.setattr(Programs, "derives_fitness", True)
    (line,) = messages(task=PROGRAMS, algorithm={"kind": "policy_gradient"})
    assert line.startswith(
        "algorithm.kind: is 'policy_gradient', which follows gradients of returns, but the task"
    )
    build_task(validate({"task": PROGRAMS, "algorithm": {"kind": "ga"}}))


@pytest.mark.satellite("programs")
def test_row_has_the_columns_of_the_problem_then_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Column("distance", "<f8", (2,))
    for algorithm, sections, column in (
        ("es", {"task": SURVIVAL}, SIGN_RETURN),
        ("random_search", {"task": PROGRAMS}, CORRECT),
    ):
        settings = {"noise": {"table_size": 10_000}, **sections, "algorithm": {"kind": algorithm}}
        config = validate(settings)
        created = build_parts(config, World("none"), build_task(config))
        assert created.row == row_dtype((column,))
        is_noisy = algorithm == "es"
        needs = Needs(
            searches="vectors" if is_noisy else "programs", noise=is_noisy, columns=(own,)
        )
        monkeypatch.setattr(module("algorithms", algorithm), "NEEDS", needs)
        config = validate(settings)
        assert build_parts(config, World("none"), build_task(config)).row == row_dtype(
            (column, own)
        )


@pytest.mark.parametrize(("kind", "cutting"), [("policy_gradient", "fixed"), ("ga", "one by one")])
@pytest.mark.satellite("programs")
def test_gradient_chunks_are_not_divided_again(kind: str, cutting: str) -> None:
    """A sum of gradients depends on the chunks, so they must not depend on the ranks."""
    config = validate({"task": PROGRAMS, "algorithm": {"kind": kind}})
    assert cutting_of(config, build_task(config).problem) == cutting
    assert config.depends_on_chunks() is (cutting == "fixed")


# The device.


def _problems(data: Mapping[str, object]) -> list[tuple[str, str]]:
    return list(device_mismatches(validate(data)))


def test_gpu_is_refused_if_numpy_computes() -> None:
    ((key, text),) = _problems({"task": {"env_id": "CartPole-v1"}, "device": "gpu"})
    assert key == "device"
    assert text.startswith(
        "is gpu, but the task 'episodes' and the policy 'mlp' (backend: numpy) compute with NumPy"
    )
    assert (
        "expected policy.backend: tensorflow, task.kind: jax_episodes or model, task.uses_gpu: true of a"
        in text
    )


def test_gpu_is_accepted_if_tensorflow_computes() -> None:
    assert not _problems(
        {"task": {"env_id": "CartPole-v1"}, "policy": {"backend": "tensorflow"}, "device": "gpu"}
    )


@pytest.mark.parametrize(
    ("has_cuda", "device", "warns"),
    [(False, "gpu", True), (True, "gpu", False), (False, "auto", False)],
)
def test_gpu_for_which_jax_is_not_installed_here_is_a_warning(
    has_cuda: bool, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config may be for a cluster, whose script is written here."""
    monkeypatch.setattr(jax_setup, "has_cuda", lambda: has_cuda)
    monkeypatch.setattr(Jax, "missing", lambda _: "")
    task = {"kind": "jax_episodes", "env_id": "gymnax:CartPole-v1"}
    assert not _problems({"task": task, "device": device})
    warnings = list(device_warnings(validate({"task": task, "device": device})))
    assert [text.partition(":")[0] for text in warnings] == (
        ["device is gpu, but JAX is installed here without CUDA support"] if warns else []
    )


@pytest.mark.satellite("actor_critic")
def test_device_request_names_the_library_and_the_key() -> None:
    task = {"kind": "jax_episodes", "env_id": "gymnax:CartPole-v1"}
    for data, expected in (
        ({"task": {"env_id": "CartPole-v1"}}, None),
        ({"task": task}, DeviceRequest("jax")),
        # compiled all the same
        ({"task": task, "policy": {"backend": "tensorflow"}}, DeviceRequest("jax")),
        (
            {"task": task, "device": "gpu", "mpi": {"ranks_per_gpu": 2}},
            DeviceRequest("jax", "gpu", 2),
        ),
        ({"task": {**task, "platform": "cpu"}}, DeviceRequest("jax", "cpu", 1, "task.platform")),
        (
            {"task": {"env_id": "CartPole-v1"}, "algorithm": {"kind": "actor_critic"}},
            DeviceRequest("tensorflow"),
        ),
    ):
        assert device_request(validate(data)) == expected


def test_two_keys_for_the_device_are_warned_of() -> None:
    task = {"kind": "jax_episodes", "env_id": "gymnax:CartPole-v1", "platform": "cpu"}
    warnings = list(
        validate({"task": task, "device": "gpu", "stop": {"generations": 1}}).warnings()
    )
    assert (
        "device",
        "is gpu, but task.platform is cpu, which takes precedence: set only one",
    ) in warnings
