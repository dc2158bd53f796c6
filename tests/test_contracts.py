"""Contracts of every algorithm, task, policy and noise, which are collected by folder.

A kind whose defaults do not make a small experiment has its settings in EXAMPLES.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.config import registry
from hpc_es.config.loading import validate
from hpc_es.core.data import (
    Array,
    Arrays,
    Box,
    Chunk,
    Column,
    Discrete,
    Jobs,
    ObservationSpec,
    Outcome,
    Results,
    Spaces,
    State,
    flat_observations,
    row_dtype,
)
from hpc_es.core.declarations import Needs, Offers
from hpc_es.core.interfaces import RunContext
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Policy
from hpc_es.core.population import Noise
from hpc_es.mpi.world import World
from hpc_es.noise import portable
from hpc_es.noise.counter import CounterNoise
from hpc_es.noise.table import TableNoise, fill
from hpc_es.training.build import Parts, build_parts, build_task
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation, UpdateInputs, update_state
from hpc_es.training.messages import Gathered
from tests.helpers.populations import centre, population
from tests.helpers.toys import batch, nothing

PROGRAMS = {"task": {"kind": "programs", "name": "reverse", "max_code_length": 30}, "policy": None}
ANYWHERE = {"dimension": 3, "bounds": {"low": -2.0, "high": 2.0}, "initial": "random"}
MARKS = ("{parameters}", "{seed}", "{result}")
CHAOS = {"kind": "episodes", "env_id": "tests.helpers.toys:Chaos-v0"}
OF_LENGTH_AND_STATE = {"length": "maximise", "end": {"from": "observation.0", "goal": "minimise"}}
EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("algorithms", "nsga2"): {
        "task": {**CHAOS, "objectives": OF_LENGTH_AND_STATE},
        "algorithm": {"kind": "nsga2", "population_size": 6},
    },
    ("algorithms", "como_cma_es"): {
        "task": {**CHAOS, "objectives": OF_LENGTH_AND_STATE},
        "algorithm": {"kind": "como_cma_es", "kernels": 3, "population_size": 5},
    },
    ("algorithms", "es"): {
        "task": {**CHAOS, "observation_normalization": {"enabled": True, "probability": 0.5}},
        "algorithm": {"kind": "es", "population_size": 12, "optimizer": {"kind": "adam"}},
    },
    ("algorithms", "novelty"): {
        "algorithm": {"kind": "novelty", "population_size": 6, "parents": 2, "rollouts": 3}
    },
    ("algorithms", "deep_ga"): {
        "algorithm": {
            "kind": "deep_ga",
            "population_size": 12,
            "validate_top": 3,
            "validation_episodes": 4,
        },
    },
    ("algorithms", "ga"): {**PROGRAMS, "algorithm": {"kind": "ga", "population_size": 12}},
    ("algorithms", "random_search"): {
        **PROGRAMS,
        "algorithm": {"kind": "random_search", "programs_per_generation": 11},
    },
    ("algorithms", "policy_gradient"): {
        **PROGRAMS,
        "task": {"kind": "programs", "name": "reverse", "max_code_length": 8},
        "algorithm": {
            **{
                "kind": "policy_gradient",
                "batch_size": 8,
                "policy_lstm_sizes": [4],
                "eos_token": True,
            },
            **{"topk": 3, "topk_loss_hparam": 1.0, "alpha": 0.5, "replay_capacity": 20},
        },
    },
    ("algorithms", "actor_critic"): {
        "task": {"kind": "bandits", "distribution": "gaussian", "num_trials": 6},
        "policy": {"kind": "lstm", "hidden_dims": [5]},
        "algorithm": {"kind": "actor_critic", "batch_size": 6},
    },
    ("tasks", "atari"): {
        "task": {"kind": "atari", "game": "boxing", "max_frames": 400, "height": 42, "width": 42},
        "policy": {"kind": "tests.helpers.pixels:Pixels", "block": 6},
    },
    ("tasks", "episodes"): {
        "task": {**CHAOS, "observation_normalization": {"enabled": True, "probability": 1.0}}
    },
    ("tasks", "bandits"): {
        "task": {
            "kind": "bandits",
            "observation_normalization": {"enabled": True, "probability": 1.0},
        },
        "policy": {"kind": "mlp", "hidden_dims": [5]},
    },
    ("policies", "cnn"): {
        "policy": {
            "kind": "cnn",
            "convolutions": [{"filters": 2, "kernel": 1}],
            "hidden_dims": [4],
        },
    },
    ("policies", "network"): {
        "policy": {"kind": "network", "network": "tests.helpers.own_networks:recurrent"}
    },
    ("tasks", "jax_episodes"): {
        "task": {
            **{
                "kind": "jax_episodes",
                "env_id": "tests.helpers.jax_walk:walk",
                "lanes": 3,
                "jobs_per_call": 4,
            },
            "observation_normalization": {"enabled": True, "probability": 1.0},
        },
    },
    ("tasks", "model"): {
        "task": {"kind": "model", "model": "tests.helpers.own_models:drawn", "jobs_per_call": 4},
        "policy": None,
    },
    ("tasks", "programs"): {**PROGRAMS, "algorithm": {"kind": "random_search"}},
}
EXAMPLES |= {
    ("tasks", "function"): {
        "task": {"kind": "function", "function": "tests.helpers.toys:noisy_bowl", **ANYWHERE},
        "policy": None,
    },
    ("tasks", "command"): {
        "task": {
            **{"kind": "command", **ANYWHERE},
            "command": [
                "sh",
                "-c",
                '(cat "$1"; echo "$2") | cksum | cut -c -6 > "$3"',
                "sh",
                *MARKS,
            ],
        },
        "policy": None,
    },
}
SECTIONS = {"algorithms": "algorithm", "tasks": "task", "policies": "policy"}
PACKAGES: tuple[registry.Package, ...] = ("algorithms", "tasks", "policies")
EVERY = [(package, kind) for package in PACKAGES for kind in registry.kinds(package)]


def every(package: registry.Package) -> Any:
    return pytest.mark.parametrize("kind", registry.kinds(package))


def example(package: str, kind: str) -> dict[str, Any]:
    """A small experiment with this kind."""
    settings: dict[str, Any] = {
        "seed": 3,
        "task": CHAOS,
        "policy": {"kind": "mlp", "hidden_dims": [5], "action_noise_std": 0.01},
        "algorithm": {"kind": "es", "population_size": 6},
        "noise": {"kind": "table", "table_size": 10_000},
        "mpi": {"chunk_size": 4},
        SECTIONS[package]: {"kind": kind},
    }
    return {**settings, **EXAMPLES.get((package, kind), {})}


def built(package: str, kind: str, repetition: int = 0) -> Parts:
    """Newly built parts, as each rank builds them."""
    return opened(example(package, kind), repetition)


CREATED: list[Parts] = []


@pytest.fixture(autouse=True)
def closed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use tmp_path for run directories, and close the tasks after each test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    while CREATED:
        CREATED.pop().task.close()


def opened(settings: Mapping[str, Any], repetition: int = 0) -> Parts:
    """The parts of these settings, with a new run directory."""
    config = validate(dict(settings))
    created = build_parts(config, World("none"), build_task(config), repetition)
    CREATED.append(created)
    created.problem.open(RunContext(Path(tempfile.mkdtemp()), 0, 1, lambda make: make()))
    return created


def generation(
    created: Parts, state: State, order: int = 1
) -> tuple[list[Chunk], list[Outcome], Results]:
    """A generation on one rank, with chunks and blocks in order (1) or in reverse (-1)."""
    result, outcomes = Generation(created, state), dict[int, Outcome]()
    while chunks := result.next_chunks():
        new = {chunk.index: result.evaluate(chunk, nothing) for chunk in chunks[::order]}
        result.add({index: outcome.rows for index, outcome in new.items()})
        outcomes |= new
    result.prepare()
    blocks = [result.partial_update(block) for block in range(result.blocks)[::order]][::order]
    arrays = [outcomes[chunk.index].arrays for chunk in result.chunks if chunk.purpose == "train"]
    in_order = [outcomes[chunk.index] for chunk in result.chunks]
    return result.chunks, in_order, result.results(Gathered(blocks, arrays))


def learned(created: Parts, state: State) -> tuple[Results, list[Arrays]]:
    """The results of a generation, and its units."""
    chunks, outcomes, results = generation(created, state)
    trained = [
        outcome for chunk, outcome in zip(chunks, outcomes, strict=True) if chunk.purpose == "train"
    ]
    return results, [created.problem.unit(unit) for outcome in trained for unit in outcome.learned]


def following(created: Parts, state: State) -> tuple[State, Mapping[str, float]]:
    """The next state and the metrics, computed as in the loop."""
    results, units = learned(created, state)
    after, metrics = created.algorithm.tell(state, results)
    carried = created.problem.merge(created.problem.carried().extract_from(state), units)
    return carried.merge_into(after), {**metrics, **created.problem.metrics(carried)}


def same_arrays(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(same(a[name], b[name]) for name in a)


def same_learned(one: Outcome, other: Outcome) -> bool:
    here, there = ([arrays for unit in item.learned for arrays in unit] for item in (one, other))
    assert [len(unit) for unit in one.learned] == [len(unit) for unit in other.learned]
    return all(map(same_arrays, here, there))


def same(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def same_state(a: State, b: State) -> bool:
    return (
        a.generation == b.generation
        and same_arrays(a.shared, b.shared)
        and same_arrays(a.master, b.master)
    )


def same_results(a: Results, b: Results) -> bool:
    arrays = len(a.chunk_arrays) == len(b.chunk_arrays) and all(
        map(same_arrays, a.chunk_arrays, b.chunk_arrays)
    )
    a_blocks, b_blocks = list(a.blocks), list(b.blocks)
    blocks = len(a_blocks) == len(b_blocks) and all(map(same_arrays, a_blocks, b_blocks))
    return arrays and blocks and same(a.rows, b.rows) and same(a.probes, b.probes)


def form(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


# Modules.


@pytest.mark.parametrize(("package", "kind"), EVERY)
def test_module_has_options_and_build(package: registry.Package, kind: str) -> None:
    result = registry.module(package, kind)
    assert dataclasses.is_dataclass(result.Options)
    assert callable(result.build)
    assert result.__doc__
    for field in dataclasses.fields(result.Options):
        assert field.metadata.get("help"), f"{field.name} has no help: make it with option()"


@pytest.mark.parametrize(("package", "kind"), EVERY)
def test_options_cannot_be_changed(package: registry.Package, kind: str) -> None:
    options = getattr(validate(example(package, kind)), SECTIONS[package])
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.kind = "other"


@every("algorithms")
def test_algorithm_declares_its_needs_and_its_fields_fit_every_problem(kind: str) -> None:
    needs: Needs = registry.module("algorithms", kind).NEEDS
    assert isinstance(needs, Needs)
    created = built("algorithms", kind)
    assert created.row == row_dtype((*created.problem.columns, *needs.columns))
    assert (created.noise is not None) == needs.noise
    assert (
        needs.searches
        in registry.module("tasks", example("algorithms", kind)["task"]["kind"]).OFFERS.problems
    )


# Algorithms.


@every("algorithms")
def test_initial_is_the_same_on_every_rank_and_of_arrays_only(kind: str) -> None:
    state = built("algorithms", kind).algorithm.initial()
    assert same_state(state, built("algorithms", kind).algorithm.initial())
    assert state.generation == 0
    assert all(
        isinstance(a, np.ndarray) and a.dtype != object
        for a in (*state.shared.values(), *state.master.values())
    )


@every("algorithms")
def test_problem_arrays_have_distinct_names(kind: str) -> None:
    created = built("algorithms", kind)
    state, carried = created.algorithm.initial(), created.problem.carried()
    assert not set(state.shared) & set(carried.shared) and not set(state.master) & set(
        carried.master
    )
    assert list(created.initial().shared) == [*state.shared, *carried.shared]
    assert list(created.initial().master) == [*state.master, *carried.master]


@every("algorithms")
def test_ask_cuts_each_round_into_consecutive_chunks_until_none_is_left(kind: str) -> None:
    created = built("algorithms", kind)
    state = created.initial()
    chunks, _, results = generation(created, state)
    again = generation(created, state)
    assert (chunks, results.rows.tobytes()) == (again[0], again[2].rows.tobytes())
    trained = [chunk for chunk in chunks if chunk.purpose == "train"]
    assert [job for chunk in trained for job in chunk.job_numbers] == list(range(len(results.rows)))
    assert (
        all(chunk.purpose in {"train", "probe"} and chunk.jobs >= 1 for chunk in chunks) and trained
    )
    assert max(chunk.jobs for chunk in chunks) <= made_chunk_size(created)


def made_chunk_size(created: Parts) -> int:
    """Jobs of a chunk; mpi.chunk_size of the examples is 4."""
    return created.problem.chunk_size or 4


@every("algorithms")
def test_generation_is_the_same_in_any_order_on_any_rank(kind: str) -> None:
    here, there = built("algorithms", kind), built("algorithms", kind)
    state = here.initial()
    chunks, outcomes, results = generation(here, state)
    backwards = generation(there, state, -1)
    assert same_results(results, backwards[2])
    assert same_results(results, generation(here, state)[2])
    for chunk, outcome, other in zip(chunks, outcomes, backwards[1], strict=True):
        assert (outcome.rows.dtype, outcome.rows.shape) == (here.row, (chunk.jobs,))
        assert not outcome.failures
        assert same_learned(outcome, other)


@every("algorithms")
def test_vector_search_is_replayed_from_rows_and_units(kind: str) -> None:
    created = built("algorithms", kind)
    if registry.module("algorithms", kind).NEEDS.searches != "vectors":
        return
    state, again = created.initial(), built("algorithms", kind)
    for _ in range(3):
        results, units = learned(created, state)
        packed = UpdateInputs(results.rows, results.probes, units).pack()
        known = UpdateInputs.unpack(packed, again.row)
        computed = SerialExecutor().replay(Generation(again, state), known.rows, known.probes)
        assert not any(results.chunk_arrays) and same_results(
            replace(computed, chunk_arrays=results.chunk_arrays), results
        )
        _, after, _ = update_state(again.algorithm, again.problem, state, computed, known.units)
        _, state, _ = update_state(created.algorithm, created.problem, state, results, units)
        assert same_state(after, state)


CARTPOLE = {"kind": "episodes", "env_id": "CartPole-v1", "max_episode_steps": 9}
UPDATED_IN_EPISODES = {
    "kind": "actor_critic",
    "batch_size": 6,
    "updates": "asynchronous",
    "update_every": 4,
}
SURVIVORS = [  # (algorithm, what is other than in its example)
    *((kind, {}) for kind in registry.kinds("algorithms") if kind != "actor_critic"),
    (
        "es",
        {
            "algorithm": {
                "kind": "es",
                "population_size": 6,
                "optimizer": {"kind": "sgd"},
                "weight_decay": 0.1,
            }
        },
    ),
    pytest.param("actor_critic", {"task": CARTPOLE}, marks=pytest.mark.tensorflow),
    pytest.param(
        "actor_critic",
        {"task": CARTPOLE, "algorithm": UPDATED_IN_EPISODES},
        marks=pytest.mark.tensorflow,
    ),
]


@pytest.mark.parametrize(("kind", "settings"), SURVIVORS)
def test_algorithm_continues_after_a_generation_of_failures(
    kind: str, settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second of three: parameters stay, nothing becomes NaN,
    and the next generation counts as usual.
    """
    created = opened({**example("algorithms", kind), **settings})
    before, _ = following(created, created.initial())
    created = opened({**example("algorithms", kind), **settings})
    with monkeypatch.context() as failing:
        for name in ("evaluate", "play", "segments"):
            if getattr(created.problem, name, None):
                failing.setattr(created.problem, name, all_failed(getattr(created.problem, name)))
        failed, _ = following(created, before)
        assert np.isnan(generation(created, before)[2].rows["return_"]).all()
    assert failed.generation == 2 and same(failed.theta, before.theta)
    assert not nans(failed) - nans(before)
    created = opened({**example("algorithms", kind), **settings})
    after, _ = following(created, failed)
    assert (
        after.generation == 3 and not nans(after) - nans(before) and np.isfinite(after.theta).all()
    )


def all_failed(evaluate: Any) -> Any:
    """The evaluation with the return NaN for every job; also for each segment of a `play`."""

    def failing(*arguments: Any) -> Any:
        outcome = evaluate(*arguments)
        if not isinstance(outcome, Outcome):
            outcome.play = all_failed(outcome.play)
            return outcome
        outcome.rows["return_"] = np.nan
        return replace(outcome, learned=())

    return failing


def nans(state: State) -> set[str]:
    """Names of the arrays that contain NaN."""
    arrays = {**state.shared, **state.master}
    return {
        name for name, array in arrays.items() if array.dtype.kind == "f" and np.isnan(array).any()
    }


@every("algorithms")
def test_repetitions_have_different_random_numbers(kind: str) -> None:
    first, second = built("algorithms", kind, 0), built("algorithms", kind, 1)
    _, _, one = generation(first, first.initial())
    _, _, other = generation(second, second.initial())
    assert not same(one.rows, other.rows)


@every("algorithms")
def test_tell_is_pure_and_keeps_the_form_of_the_state(kind: str) -> None:
    created, again = built("algorithms", kind), built("algorithms", kind)
    initial = state = created.initial()
    keeps_shapes = not registry.module("algorithms", kind).NEEDS.growing
    for number in range(3):
        _, _, results = generation(created, state)
        before, inputs = copy.deepcopy(state), copy.deepcopy(results)
        message, _ = created.algorithm.tell(state, results)
        assert same_state(message, again.algorithm.tell(state, results)[0])
        assert same_state(state, before), "tell changed its state"
        assert same_results(results, inputs), "tell changed its results"
        assert message.generation == number + 1
        state, metrics = following(created, state)
        assert list(state.shared) == list(initial.shared) and list(state.master) == list(
            initial.master
        )
        if keeps_shapes:
            assert form(state.shared) == form(initial.shared)
            assert form(state.master) == form(initial.master)
        assert all(np.isfinite(value) for value in metrics.values())
    assert not (
        same_arrays(state.shared, initial.shared) and same_arrays(state.master, initial.master)
    )
    assert not same(state.theta, initial.theta) or not state.theta.size


@every("algorithms")
def test_workers_need_the_shared_arrays_only(kind: str) -> None:
    """Workers keep the initial master arrays; results must not depend on them."""
    created = built("algorithms", kind)
    initial = created.initial()
    state, _ = following(created, initial)
    on_worker = State(state.generation, state.shared, initial.master)
    chunks, _, results = generation(created, state)
    its_chunks, _, its_results = generation(built("algorithms", kind), on_worker)
    assert chunks == its_chunks
    assert same_results(results, its_results)


@every("algorithms")
def test_evaluating_changes_no_state(kind: str) -> None:
    created = built("algorithms", kind)
    state = created.initial()
    before = copy.deepcopy(state)
    generation(created, state)
    if created.problem.evaluation_episodes != 0:
        created.algorithm.evaluate(state, Chunk(0, 0, 3, "evaluate"), nothing)
    assert same_state(state, before)


@every("algorithms")
def test_evaluation_episodes_do_not_depend_on_their_chunk(kind: str) -> None:
    created = built("algorithms", kind)
    if created.problem.evaluation_episodes == 0:
        pytest.skip("programs have no evaluation episodes")
    state = created.initial()
    whole = created.algorithm.evaluate(state, Chunk(0, 0, 6, "evaluate"), nothing).rows
    build_parts = [
        created.algorithm.evaluate(state, Chunk(i, i, 1, "evaluate"), nothing).rows
        for i in range(6)
    ]
    assert same(np.concatenate(build_parts), whole)
    training = created.algorithm.evaluate(state, generation(created, state)[0][0], nothing).rows
    assert not set(training["return_"].tolist()) & set(whole["return_"].tolist())


@every("algorithms")
def test_metrics_of_a_state_are_plain_numbers(kind: str) -> None:
    created = built("algorithms", kind)
    state, _ = following(created, created.initial())
    values = list(created.algorithm.summary(state).values())
    for value in values:
        if isinstance(value, dict):  # a part with entries of its own
            values += value.values()
        else:
            assert value is None or type(value) in {bool, int, float, str}, value
    assert created.algorithm.finished(state) is None or isinstance(
        created.algorithm.finished(state), str
    )


# Tasks.


PROBLEMS = [
    (kind, word)
    for kind in registry.kinds("tasks")
    for word in registry.module("tasks", kind).OFFERS.problems
]
# an algorithm for each
SEARCHED = {"vectors": "es", "programs": "random_search", "trajectories": "actor_critic"}
# other sections of tasks for which policies in JAX are differentiated
TRAJECTORIES: dict[str, Any] = {
    "atari": {
        "policy": {"kind": "cnn", "convolutions": [{"filters": 2, "kernel": 8, "stride": 4}]}
    },
    "jax_episodes": {
        "task": {
            **{
                "kind": "jax_episodes",
                "env_id": "tests.helpers.jax_steps:steps",
                "env_kwargs": {"random": True},
            },
            **{"lanes": 3, "jobs_per_call": 4},
        },
        "policy": {"kind": "network", "network": "tests.helpers.own_networks:recurrent"},
        "algorithm": {"kind": "actor_critic", "update_every": 3},
    },
}
every_problem = pytest.mark.parametrize(("kind", "word"), PROBLEMS)


def problem(kind: str, word: str) -> Parts:
    """The parts of an experiment on this kind of problem of a task."""
    settings = example("tasks", kind)
    settings["algorithm"] = {"kind": SEARCHED[word]}
    # as its steps are differentiated, the policy sees observations as they are
    if word == "trajectories":
        settings["task"] = {
            name: settings["task"][name] for name in settings["task"] if "normalization" not in name
        }
        settings["task"] |= (
            {"env_id": "tests.helpers.toys:Survival-v0"} if kind == "episodes" else {}
        )
        settings["policy"] = {"kind": "lstm", "hidden_dims": [3]}
        settings |= TRAJECTORIES.get(kind, {})
    return opened(settings)


def evaluated(created: Parts, word: str, numbers: range, polls: list[int] | None = None) -> Outcome:
    """The outcome of these jobs in generation 2, each with its own candidate or program."""
    jobs, poll = (
        Jobs(2, numbers, list(numbers)),
        lambda: (polls if polls is not None else []).append(1),
    )
    result: Any = created.problem
    if word == "programs":
        outcome: Outcome = result.evaluate(
            [["+.", ",[.,]", ">,[>,]<[.<]"][job % 3] for job in numbers], jobs, poll
        )
        return outcome
    if word == "trajectories":
        seeds = np.array([[job] * result.episodes_per_job for job in numbers])
        acting = getattr(result.compiled, "acting", result.policy)
        played: Outcome = result.play(bound(acting, 8, list(numbers)), batch(seeds), poll)
        return played
    directions = np.random.default_rng(1).standard_normal((8, result.size)).astype(np.float32)
    theta = result.initial(np.random.default_rng(0))
    candidates = population(
        theta, directions, np.array(numbers), np.full(len(numbers), 0.5, theta.dtype), result.layout
    )
    of_vectors: Outcome = result.evaluate(candidates, jobs, result.carried(), poll)
    return of_vectors


@every("tasks")
def test_task_declares_its_offers(kind: str) -> None:
    offers: Offers = registry.module("tasks", kind).OFFERS
    created = built("tasks", kind)
    assert isinstance(offers, Offers) and offers.problems
    assert offers.policy == isinstance(created.task.spaces, Spaces) == (created.policy is not None)
    assert created.task.name


@every_problem
def test_problem_returns_one_row_per_job(kind: str, word: str) -> None:
    created = problem(kind, word)
    result, polls = created.problem, list[int]()
    outcome = evaluated(created, word, range(3), polls)
    assert polls
    assert (outcome.rows.dtype, outcome.rows.shape) == (row_dtype(result.columns), (3,))
    assert (
        result.episodes_per_job >= 1 and (outcome.rows["length"] >= result.episodes_per_job).all()
    )
    assert np.isfinite(outcome.rows["return_"]).all()
    assert all(isinstance(item, Column) for item in result.columns)
    assert result.chunk_size is None or result.chunk_size >= 1
    assert set(outcome.seconds) <= {"environment", "policy", "policy_calls"}


@every_problem
def test_problem_is_a_function_of_its_jobs(kind: str, word: str) -> None:
    """Independent of earlier evaluations and of the other jobs of the chunk."""
    here, there = problem(kind, word), problem(kind, word)
    first = evaluated(here, word, range(4, 7))
    evaluated(there, word, range(1, 3))
    second = evaluated(there, word, range(4, 7))
    assert same(first.rows, second.rows)
    assert same_learned(first, second)
    assert same(evaluated(there, word, range(5, 7)).rows, first.rows[1:])


@every_problem
def test_problem_state_keeps_its_shapes_and_dtypes(kind: str, word: str) -> None:
    """Merged on rank 0 from units; without units it does not change."""
    created = problem(kind, word)
    result = created.problem
    before = copy.deepcopy(result.carried())
    learned = [
        *evaluated(created, word, range(3)).learned,
        *evaluated(created, word, range(3, 8)).learned,
    ]
    units = [result.unit(unit) for unit in learned]
    after = result.merge(result.carried(), units)
    assert form(after.shared) == form(before.shared) and form(after.master) == form(before.master)
    assert same_arrays(result.carried().shared, before.shared) and same_arrays(
        result.carried().master, before.master
    )
    assert all(np.isfinite(value) for value in result.metrics(after).values())
    again = result.merge(before, [])
    assert same_arrays(again.shared, before.shared) and same_arrays(again.master, before.master)


@pytest.mark.parametrize("kind", [kind for kind, word in PROBLEMS if word == "vectors"])
def test_vector_problem_starts_from_a_vector_of_its_size(kind: str) -> None:
    result: Any = problem(kind, "vectors").problem
    first, second = (result.initial(np.random.default_rng(1)) for _ in range(2))
    assert (first.dtype, first.shape) == (result.dtype, (result.size,))
    assert same(first, second) and not same(first, result.initial(np.random.default_rng(2)))
    assert result.layout.size == result.size


@pytest.mark.parametrize("kind", [kind for kind, word in PROBLEMS if word == "vectors"])
def test_purposes_have_different_episodes(kind: str) -> None:
    """With the same centre and job numbers: training,
    a probe and an evaluation have different seeds.
    """
    result: Any = problem(kind, "vectors").problem
    theta = result.initial(np.random.default_rng(0))
    returns = [
        result.evaluate(
            centre(theta, 8, result.layout),
            Jobs(2, range(8), range(8), purpose),
            result.carried(),
            nothing,
        ).rows
        for purpose in ("train", "probe", "evaluate")
    ]
    assert len({rows["return_"].tobytes() for rows in returns}) == 3


# Noise.


class Plain:
    """The sums by their definition, in float64."""

    def __init__(self, noise: Noise, size: int) -> None:
        self._noise, self._size = noise, size

    def sums(self, generation: int, weights: Array, powers: Sequence[int]) -> Array:
        directions = [
            self._noise.direction(generation, pair, 0, self._size)
            for pair in range(weights.shape[1])
        ]
        return np.array(
            [
                [
                    sum(w * float(d[i]) ** power for w, d in zip(row, directions, strict=True))
                    for i in range(self._size)
                ]
                for row, power in zip(weights, powers, strict=True)
            ]
        )


def noise_of(kind: str, size: int) -> Noise:
    if kind != "table":
        return (
            CounterNoise(Keys(5), size)
            if kind == "counter"
            else CounterNoise(Keys(5), size, portable.fill)
        )
    table = np.empty(5000, np.float32)
    fill(table, Keys(5), 0, 1)
    return TableNoise(table, Keys(5), size)


@pytest.mark.parametrize("kind", ["table", "counter", "portable"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_sums_equal_plain_sums(kind: str, dtype: type[np.floating]) -> None:
    created, weights = noise_of(kind, 6), np.array([[1.5, -2, 0], [0, 3, 0.25], [-1, 1, 1]])
    result = created.weighted_sums(7, weights, (1, 2, 1), 0, np.dtype(dtype))
    assert (result.shape, result.dtype) == ((3, 6), dtype)
    np.testing.assert_allclose(
        result, Plain(created, 6).sums(7, weights, (1, 2, 1)), rtol=1e-5, atol=1e-6
    )


# Policies.

BOX = Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))
# Kinds that take images get observations of shape (3, 1), others vectors of 3.
IMAGES = ("cnn",)
SPACES = (Spaces(flat_observations(3), BOX), Spaces(flat_observations(3), Discrete(4, start=2)))


def policy_of(kind: str, spaces: Spaces) -> Policy:
    options = validate(example("policies", kind)).policy
    if kind in IMAGES:
        spaces = Spaces(ObservationSpec((3, 1)), spaces.actions)
    policy: Policy = registry.module("policies", kind).build(options, spaces)
    return policy


def bound(policy: Policy, jobs: int, rows: Sequence[int] | None = None) -> Any:
    """An actor for jobs with different parameters, or for some of the jobs."""
    rng = np.random.default_rng(0)
    theta, directions = (
        policy.initial(rng),
        rng.standard_normal((jobs, policy.layout.size)).astype(np.float32),
    )
    chosen = np.array(range(jobs) if rows is None else rows, np.intp)
    scales = np.full(len(chosen), 0.5, np.float32)
    return policy.bind(population(theta, directions, chosen, scales, policy.layout), None)


def acted(actor: Any, observations: Any) -> list[Any]:
    """The actions of steps [steps, rows, observations]."""
    return [actor.act(step).copy() for step in observations]


OBSERVATIONS = np.random.default_rng(1).standard_normal((4, 5, 3)).astype(np.float32)


def observations_of(kind: str) -> Any:
    """Observations of 5 rows in 4 steps, [steps, rows, *shape]."""
    return OBSERVATIONS.reshape(4, 5, 3, 1) if kind in IMAGES else OBSERVATIONS


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_initial_parameters_depend_on_the_generator_only(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    first, second = (policy.initial(np.random.default_rng(1)) for _ in range(2))
    assert (first.dtype, first.shape) == (np.float32, (policy.layout.size,))
    assert same(first, second)
    assert not same(first, policy.initial(np.random.default_rng(2)))


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_actions_are_in_their_space(kind: str, spaces: Spaces) -> None:
    for actions in acted(bound(policy_of(kind, spaces), 5), observations_of(kind) * 100):
        if isinstance(spaces.actions, Box):
            assert (actions.dtype, actions.shape) == (np.float32, (5, 2))
            assert ((actions >= spaces.actions.low) & (actions <= spaces.actions.high)).all()
        else:
            assert (actions.dtype, actions.shape) == (np.int64, (5,))
            assert ((actions >= 2) & (actions < 6)).all()


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_rows_act_independently_of_each_other(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together = acted(bound(policy, 5), observations_of(kind))
    for row in range(5):
        alone = acted(bound(policy, 5, [row]), observations_of(kind)[:, row : row + 1])
        assert [step.tobytes() for step in alone] == [
            step[row : row + 1].tobytes() for step in together
        ]


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_kept_rows_act_as_before(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together, actor = acted(bound(policy, 5), observations_of(kind)), bound(policy, 5)
    acted(actor, observations_of(kind)[:2])
    actor.keep(np.array([1, 4]))
    kept = acted(actor, observations_of(kind)[2:, [1, 4]])
    assert [step.tobytes() for step in kept] == [step[[1, 4]].tobytes() for step in together[2:]]


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_restarted_row_acts_as_a_new_one_and_others_continue(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together, new = (
        acted(bound(policy, 5), observations_of(kind)),
        acted(bound(policy, 5), observations_of(kind)[2:]),
    )
    actor = bound(policy, 5)
    acted(actor, observations_of(kind)[:2])
    actor.restart(3)
    for step, went_on, began in zip(
        acted(actor, observations_of(kind)[2:]), together[2:], new, strict=True
    ):
        assert step[3].tobytes() == began[3].tobytes()
        assert np.delete(step, 3, axis=0).tobytes() == np.delete(went_on, 3, axis=0).tobytes()
