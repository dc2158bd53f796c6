"""What every algorithm, task and policy promises; found by folder, so that a new file is tested without being named.

A kind whose defaults do not make a small experiment has its settings in EXAMPLES.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hpc_es import kinds
from hpc_es.config import validate
from hpc_es.experiment.build import Parts, parts, task_and_policy
from hpc_es.interfaces import ROW, Arrays, Box, Chunk, Discrete, Outcome, Perturbed, Policy, Results, Spaces, State
from hpc_es.mpi.world import World
from tests.toys import batch, nothing

PROGRAMS = {"task": {"kind": "programs", "name": "reverse", "max_code_length": 30}, "policy": None}
EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("algorithms", "es"): {
        "algorithm": {
            "kind": "es",
            "population_size": 12,
            "observation_normalization": {"enabled": True, "probability": 0.5},
            "optimizer": {"kind": "adam"},
        }
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
            **{"kind": "policy_gradient", "batch_size": 8, "policy_lstm_sizes": [4], "eos_token": True},
            **{"topk": 3, "topk_loss_hparam": 1.0, "alpha": 0.5, "replay_capacity": 20},
        },
    },
    ("algorithms", "actor_critic"): {
        "task": {"kind": "bandits", "distribution": "gaussian", "num_trials": 6},
        "policy": {"kind": "lstm", "hidden_dims": [5]},
        "algorithm": {"kind": "actor_critic", "batch_size": 6},
    },
    ("tasks", "episodes"): {"task": {"kind": "episodes", "env_id": "tests.toys:Chaos-v0"}},
    ("tasks", "programs"): {**PROGRAMS, "algorithm": {"kind": "random_search"}},
}
SECTIONS = {"algorithms": "algorithm", "tasks": "task", "policies": "policy"}
PACKAGES: tuple[kinds.Package, ...] = ("algorithms", "tasks", "policies")
EVERY = [(package, kind) for package in PACKAGES for kind in kinds.kinds(package)]


def every(package: kinds.Package) -> Any:
    return pytest.mark.parametrize("kind", kinds.kinds(package))


def example(package: str, kind: str) -> dict[str, Any]:
    """A small experiment with this kind."""
    settings: dict[str, Any] = {
        "seed": 3,
        "task": {"kind": "episodes", "env_id": "tests.toys:Chaos-v0"},
        "policy": {"kind": "mlp", "hidden_dims": [5], "action_noise_std": 0.01},
        "algorithm": {"kind": "es", "population_size": 6},
        "noise": {"kind": "table", "table_size": 10_000},
        "mpi": {"chunk_size": 4},
        SECTIONS[package]: {"kind": kind},
    }
    return {**settings, **EXAMPLES.get((package, kind), {})}


def built(package: str, kind: str, repetition: int = 0) -> Parts:
    """The parts, made anew, as a rank makes them."""
    config = validate(example(package, kind))
    task, policy = task_and_policy(config)
    return parts(config, World("none"), task, policy, repetition)


def generation(made: Parts, state: State, order: int = 1) -> tuple[list[Chunk], list[Outcome], Results]:
    """A generation of one round on one rank, its chunks and blocks taken forwards (1) or backwards (-1)."""
    algorithm = made.algorithm
    chunks = algorithm.ask(state, 0, 0)
    outcomes = [algorithm.evaluate(state, chunk, nothing) for chunk in chunks[::order]][::order]
    rows = np.concatenate([outcome.rows for outcome in outcomes])
    blocks = [algorithm.contribute(state, rows, block) for block in range(algorithm.blocks())[::order]][::order]
    return chunks, outcomes, Results(rows, [outcome.arrays for outcome in outcomes], blocks)


def same_arrays(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(same(a[name], b[name]) for name in a)


def same(a: Any, b: Any) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def same_state(a: State, b: State) -> bool:
    return a.generation == b.generation and same_arrays(a.shared, b.shared) and same_arrays(a.master, b.master)


def same_results(a: Results, b: Results) -> bool:
    arrays = len(a.chunk_arrays) == len(b.chunk_arrays) and all(map(same_arrays, a.chunk_arrays, b.chunk_arrays))
    return arrays and same(a.rows, b.rows) and all(map(same, a.blocks, b.blocks))


def form(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


# Modules.


@pytest.mark.parametrize(("package", "kind"), EVERY)
def test_a_module_has_options_and_build(package: kinds.Package, kind: str) -> None:
    found = kinds.module(package, kind)
    assert dataclasses.is_dataclass(found.Options)
    assert callable(found.build)
    assert found.__doc__
    for field in dataclasses.fields(found.Options):
        assert field.metadata.get("help"), f"{field.name} has no help: make it with option()"


@pytest.mark.parametrize(("package", "kind"), EVERY)
def test_options_cannot_be_changed(package: kinds.Package, kind: str) -> None:
    options = getattr(validate(example(package, kind)), SECTIONS[package])
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.kind = "other"


# Algorithms.


@every("algorithms")
def test_initial_is_the_same_on_every_rank_and_of_arrays_only(kind: str) -> None:
    state = built("algorithms", kind).algorithm.initial()
    assert same_state(state, built("algorithms", kind).algorithm.initial())
    assert state.generation == 0
    assert all(
        isinstance(a, np.ndarray) and a.dtype != object for a in (*state.shared.values(), *state.master.values())
    )


@every("algorithms")
def test_ask_cuts_each_round_into_consecutive_chunks(kind: str) -> None:
    made = built("algorithms", kind)
    state = made.algorithm.initial()
    chunks: list[Chunk] = []
    for round in range(3):
        assert made.algorithm.ask(state, round, len(chunks)) == made.algorithm.ask(state, round, len(chunks))
        chunks += made.algorithm.ask(state, round, len(chunks))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [job for chunk in chunks for job in chunk.job_numbers] == list(range(sum(chunk.jobs for chunk in chunks)))
    assert all(chunk.training and chunk.jobs >= 1 for chunk in chunks)


@every("algorithms")
def test_a_generation_is_the_same_in_any_order_on_any_rank(kind: str) -> None:
    here, there = built("algorithms", kind), built("algorithms", kind)
    state = here.algorithm.initial()
    chunks, outcomes, results = generation(here, state)
    assert same_results(results, generation(there, state, -1)[2])
    assert same_results(results, generation(here, state)[2])
    for chunk, outcome in zip(chunks, outcomes, strict=True):
        assert (outcome.rows.dtype, outcome.rows.shape) == (ROW, (chunk.jobs,))
        assert not outcome.failures


@every("algorithms")
def test_repetitions_differ(kind: str) -> None:
    first, second = built("algorithms", kind, 0), built("algorithms", kind, 1)
    _, _, one = generation(first, first.algorithm.initial())
    _, _, other = generation(second, second.algorithm.initial())
    assert not same(one.rows, other.rows)


@every("algorithms")
def test_tell_is_pure_and_keeps_the_form_of_the_state(kind: str) -> None:
    made, again = built("algorithms", kind), built("algorithms", kind)
    initial = state = made.algorithm.initial()
    for number in range(3):
        _, _, results = generation(made, state)
        before, given = copy.deepcopy(state), copy.deepcopy(results)
        following, metrics = made.algorithm.tell(state, results)
        assert same_state(following, again.algorithm.tell(state, results)[0])
        assert same_state(state, before), "tell changed its state"
        assert same_results(results, given), "tell changed its results"
        assert following.generation == number + 1
        assert form(following.shared) == form(initial.shared)
        assert form(following.master) == form(initial.master)
        assert all(np.isfinite(value) for value in metrics.values())
        state = following
    assert not (same_arrays(state.shared, initial.shared) and same_arrays(state.master, initial.master))
    assert not same(state.theta, initial.theta) or not state.theta.size


@every("algorithms")
def test_workers_need_the_shared_arrays_only(kind: str) -> None:
    """The master's arrays of a worker are those of the initial state for ever; results must not depend on them."""
    made = built("algorithms", kind)
    initial = made.algorithm.initial()
    state, _ = made.algorithm.tell(initial, generation(made, initial)[2])
    on_worker = State(state.generation, state.shared, initial.master)
    chunks, _, results = generation(made, state)
    its_chunks, _, its_results = generation(built("algorithms", kind), on_worker)
    assert chunks == its_chunks
    assert same_results(results, its_results)
    assert made.algorithm.enough(results.rows) == made.algorithm.enough(its_results.rows)


@every("algorithms")
def test_evaluating_changes_no_state(kind: str) -> None:
    made = built("algorithms", kind)
    state = made.algorithm.initial()
    before = copy.deepcopy(state)
    generation(made, state)
    if made.task.spaces is not None:
        made.algorithm.evaluate(state, Chunk(0, 0, 3, training=False), nothing)
    assert same_state(state, before)


@every("algorithms")
def test_evaluation_episodes_do_not_depend_on_their_chunk(kind: str) -> None:
    made = built("algorithms", kind)
    if made.task.spaces is None:
        pytest.skip("programs have no evaluation episodes")
    state = made.algorithm.initial()
    whole = made.algorithm.evaluate(state, Chunk(0, 0, 6, training=False), nothing).rows
    parts = [made.algorithm.evaluate(state, Chunk(i, i, 1, training=False), nothing).rows for i in range(6)]
    assert same(np.concatenate(parts), whole)
    training = made.algorithm.evaluate(state, made.algorithm.ask(state, 0, 0)[0], nothing).rows
    assert not set(training["return_"].tolist()) & set(whole["return_"].tolist())


# Tasks.


@every("tasks")
def test_a_task_has_spaces_and_gives_a_row_a_job(kind: str) -> None:
    made = built("tasks", kind)
    assert made.task.spaces is None or isinstance(made.task.spaces, Spaces)
    assert made.task.episodes_per_job >= 1
    polls: list[int] = []
    jobs, per_job = 3, made.task.episodes_per_job
    seeds = np.arange(jobs * per_job).reshape(jobs, per_job).tolist()
    outcome = made.task.evaluate(performer(made, jobs), batch(seeds), lambda: polls.append(1))
    assert polls
    assert (outcome.rows.dtype, outcome.rows.shape) == (ROW, (jobs,))
    assert (outcome.rows["length"] >= per_job).all()
    assert np.isfinite(outcome.rows["return_"]).all()


@every("tasks")
def test_a_task_is_a_function_of_its_batch(kind: str) -> None:
    """Also of a task that has run something else before."""
    here, there = built("tasks", kind), built("tasks", kind)
    seeds = [[seed] * here.task.episodes_per_job for seed in (5, 6, 7)]
    first = here.task.evaluate(performer(here, 3), batch(seeds, observe=[True] * 3), nothing)
    there.task.evaluate(performer(there, 2), batch(seeds[1:]), nothing)
    second = there.task.evaluate(performer(there, 3), batch(seeds, observe=[True] * 3), nothing)
    assert same(first.rows, second.rows)
    assert same_arrays(first.arrays, second.arrays)


# Policies.

BOX = Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))
SPACES = (Spaces(3, BOX), Spaces(3, Discrete(4, start=2)))


def policy_of(kind: str, spaces: Spaces) -> Policy:
    options = validate(example("policies", kind)).policy
    policy: Policy = kinds.module("policies", kind).build(options, spaces)
    return policy


def performer(made: Parts, jobs: int) -> Any:
    """What a task evaluates: an actor, or programs."""
    return bound(made.policy, jobs) if made.policy is not None else ["+.", ",[.,]", ">,[>,]<[.<]"][:jobs]


def bound(policy: Policy, jobs: int, rows: Sequence[int] | None = None) -> Any:
    """An actor for jobs with parameters of their own, or some of them."""
    rng = np.random.default_rng(0)
    theta, directions = policy.initial(rng), rng.standard_normal((jobs, policy.size)).astype(np.float32)
    chosen = np.array(range(jobs) if rows is None else rows, np.intp)
    return policy.bind(Perturbed(theta, directions, chosen, np.full(len(chosen), 0.5, np.float32)), None)


def acted(actor: Any, observations: Any) -> list[Any]:
    """The actions of steps [steps, rows, observations]."""
    return [actor.act(step).copy() for step in observations]


OBSERVATIONS = np.random.default_rng(1).standard_normal((4, 5, 3)).astype(np.float32)


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_initial_parameters(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    first, second = (policy.initial(np.random.default_rng(1)) for _ in range(2))
    assert (first.dtype, first.shape) == (np.float32, (policy.size,))
    assert same(first, second)
    assert not same(first, policy.initial(np.random.default_rng(2)))


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_actions_are_in_their_space(kind: str, spaces: Spaces) -> None:
    for actions in acted(bound(policy_of(kind, spaces), 5), OBSERVATIONS * 100):
        if isinstance(spaces.actions, Box):
            assert (actions.dtype, actions.shape) == (np.float32, (5, 2))
            assert ((actions >= spaces.actions.low) & (actions <= spaces.actions.high)).all()
        else:
            assert (actions.dtype, actions.shape) == (np.int64, (5,))
            assert ((actions >= 2) & (actions < 6)).all()


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_each_row_acts_as_if_it_were_alone(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together = acted(bound(policy, 5), OBSERVATIONS)
    for row in range(5):
        alone = acted(bound(policy, 5, [row]), OBSERVATIONS[:, row : row + 1])
        assert [step.tobytes() for step in alone] == [step[row : row + 1].tobytes() for step in together]


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_kept_rows_act_as_before(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together, actor = acted(bound(policy, 5), OBSERVATIONS), bound(policy, 5)
    acted(actor, OBSERVATIONS[:2])
    actor.keep(np.array([1, 4]))
    kept = acted(actor, OBSERVATIONS[2:, [1, 4]])
    assert [step.tobytes() for step in kept] == [step[[1, 4]].tobytes() for step in together[2:]]


@every("policies")
@pytest.mark.parametrize("spaces", SPACES)
def test_a_restarted_row_acts_as_a_new_one_and_the_others_go_on(kind: str, spaces: Spaces) -> None:
    policy = policy_of(kind, spaces)
    together, new = acted(bound(policy, 5), OBSERVATIONS), acted(bound(policy, 5), OBSERVATIONS[2:])
    actor = bound(policy, 5)
    acted(actor, OBSERVATIONS[:2])
    actor.restart(3)
    for step, went_on, began in zip(acted(actor, OBSERVATIONS[2:]), together[2:], new, strict=True):
        assert step[3].tobytes() == began[3].tobytes()
        assert np.delete(step, 3, axis=0).tobytes() == np.delete(went_on, 3, axis=0).tobytes()
