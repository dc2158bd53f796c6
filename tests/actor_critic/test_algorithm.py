"""The update by hand, options that are refused before the run, checkpoints, and learning."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.actor_critic.algorithm import SUMS, annealed
from hpc_es.algorithms.common.optimizers import GRADIENT
from hpc_es.config.loading import load, validate
from hpc_es.config.schema import Config
from hpc_es.config.yaml_text import override
from hpc_es.core.data import (
    EPISODE_LENGTH,
    NO_FITNESS,
    ROW,
    SIGN_RETURN,
    Chunk,
    Results,
    State,
    row_dtype,
)
from hpc_es.core.errors import CheckpointError, ConfigError, UserError
from hpc_es.mpi.world import World
from hpc_es.storage.checkpoint import load as load_checkpoint
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.training.build import build_parts, build_task
from tests.helpers import runs
from tests.helpers.harness import ROOT
from tests.helpers.toys import nothing

pytestmark = pytest.mark.tensorflow

CONFIGS = ROOT / "configs"
TINY: dict[str, Any] = {
    "seed": 1,
    "task": {"kind": "bandits", "distribution": "easy", "num_trials": 6},
    "policy": {"kind": "lstm", "hidden_dims": [4]},
    "algorithm": {
        "kind": "actor_critic",
        "batch_size": 6,
        "optimizer": {"kind": "adam", "learning_rate": 0.05},
    },
    "mpi": {"chunk_size": 3},
    "evaluation": {"interval": 2, "episodes": 4},
    "checkpoint": {"interval": 1, "interval_seconds": 0},
    "stop": {"generations": 2},
    "report": {"plot_interval_seconds": 0},
}


def config(*overrides: str) -> Config:
    return dataclasses.replace(validate(override(TINY, overrides)), name="tiny")


def built(*overrides: str) -> Any:
    created = config(*overrides)
    return build_parts(created, World("none"), build_task(created)).algorithm


def trained(run: Path, *overrides: str) -> list[dict[str, Any]]:
    return list(hpc_es.train(config(*overrides), run))


# Parameters and schedule.


@pytest.mark.parametrize(
    ("task", "lstm", "total"),
    [
        ("task={kind: bandits}", 10_176, 10_176 + 98 + 49),
        ("task={kind: bandits, distribution: eleven, reward: one_hot}", 14_208, 14_796),
    ],
)
def test_parameter_counts_equal_the_published_ones(task: str, lstm: int, total: int) -> None:
    """48 units; the weights of the LSTM, then with both heads."""
    algorithm = built(task, "policy.hidden_dims=[48]")
    shared = algorithm.initial().shared
    assert sum(map(len, shared.values())) == total
    shapes = algorithm.policy.layout.shapes
    assert (
        sum(int(np.prod(shape)) for name, shape in shapes.items() if name.startswith("lstm"))
        == lstm
    )


def test_both_heads_are_initialised_with_normalised_columns() -> None:
    algorithm = built()
    shared = algorithm.initial().shared
    arrays = algorithm.policy.layout.split(shared["theta"])
    np.testing.assert_allclose(np.linalg.norm(arrays["output_kernel"], axis=0), 0.01, rtol=1e-5)
    assert np.linalg.norm(shared["value"][:-1]) == pytest.approx(1.0, rel=1e-6)
    assert shared["value"][-1] == 0 and not arrays["output_bias"].any()


@pytest.mark.parametrize(
    ("step", "beta"), [(0, 1.0), (500_000, 0.75), (1_000_000, 0.5), (2_000_000, 0), (3_000_000, 0)]
)
def test_annealing_is_linear_and_then_constant(step: int, beta: float) -> None:
    """Beyond its end the original implementation continued to -0.5."""
    assert annealed(1.0, 0.0, step, 2_000_000) == beta


def test_entropy_weight_anneals_with_the_number_of_episodes() -> None:
    algorithm = built("algorithm.entropy={start: 0.4, end: 0.1, episodes: 60}")
    states = [State(generation, {}, {}) for generation in (0, 5, 10, 99, 10**9)]
    assert [algorithm.beta(state) for state in states[:4]] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    assert built("algorithm.entropy={start: 0.4}").beta(states[4]) == 0.4


def test_entropy_weight_anneals_with_the_number_of_timesteps() -> None:
    """Updates of 6, 3 (with those of a failed job) and 9 of 12 steps."""
    algorithm = built("algorithm.entropy={start: 0.6, end: 0.0, timesteps: 12}")
    state, weights = algorithm.initial(), []
    chunk = {
        GRADIENT: np.zeros(len(state.theta) + len(state.shared["value"]), np.float32),
        SUMS: np.zeros(3),
    }
    for returns, steps in (
        ((1.0, 1.0), (4, 2)),
        ((1.0, np.nan), (2, 1)),
        ((1.0, 1.0), (4, 5)),
        ((1.0, 1.0), (1, 1)),
    ):
        rows = np.zeros(2, row_dtype((SIGN_RETURN, EPISODE_LENGTH)))
        rows["return_"], rows["length"], rows["episode_length"] = returns, steps, steps
        state, metrics = algorithm.tell(state, Results(rows, [chunk]))
        weights.append(metrics["entropy_weight"])
    assert weights == pytest.approx([0.6, 0.3, 0.15, 0.0])


@pytest.mark.long
def test_entropy_is_weighted_in_the_loss() -> None:
    gradients = []
    for start in (0.0, 1.0, 2.0):
        algorithm = built(f"algorithm.entropy.start={start}")
        state, chunk = algorithm.initial(), Chunk(0, 0, 6)
        gradients.append(algorithm.evaluate(state, chunk, nothing).arrays[GRADIENT])
    np.testing.assert_allclose(gradients[2] - gradients[1], gradients[1] - gradients[0], atol=1e-4)
    assert np.abs(gradients[1] - gradients[0]).max() > 1e-3


# Chunks and the update.


def test_batch_is_cut_into_chunks_unless_updates_are_asynchronous() -> None:
    algorithm = built("mpi.chunk_size=4")
    assert algorithm.ask(algorithm.initial(), 0, np.zeros(0, ROW), NO_FITNESS) == [
        Chunk(0, 0, 4),
        Chunk(1, 4, 2),
    ]
    alone = built("mpi.chunk_size=4", "algorithm.updates=asynchronous")
    assert alone.ask(alone.initial(), 0, np.zeros(0, ROW), NO_FITNESS) == [Chunk(0, 0, 6)]


@pytest.mark.long
def test_gradient_does_not_depend_on_the_chunks() -> None:
    """Except for the order of the sums: episodes and actions are the same."""
    for task in (
        "task.distribution=easy",
        "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}",
    ):
        algorithm = built(task)
        state = algorithm.initial()
        whole = algorithm.evaluate(state, Chunk(0, 0, 6), nothing)
        pieces = [algorithm.evaluate(state, Chunk(n, 2 * n, 2), nothing) for n in range(3)]
        assert np.concatenate([piece.rows for piece in pieces]).tobytes() == whole.rows.tobytes()
        for name in (GRADIENT, SUMS):
            total = np.sum([piece.arrays[name] for piece in pieces], axis=0)
            np.testing.assert_allclose(total, whole.arrays[name], rtol=1e-3, atol=1e-3)


def results(algorithm: Any, *chunks: tuple[float, int]) -> Results:
    """Results of chunks of one episode with the gradient (x, 0, ...) and a length,
    negative if it failed.
    """
    rows = np.zeros(len(chunks), ROW)
    rows["length"] = [abs(length) for _, length in chunks]
    rows["return_"] = [np.nan if length < 0 else 1.0 for _, length in chunks]
    size = sum(map(len, algorithm.initial().shared.values()))
    slopes = np.zeros((len(chunks), size), np.float32)
    slopes[:, 0] = [x for x, _ in chunks]
    return Results(
        rows, [{GRADIENT: slope, SUMS: np.array([4.0, 8.0, 2.0])} for slope in slopes], []
    )


PLAIN = "algorithm.optimizer={kind: none, learning_rate: 1.0}"


def test_update_follows_the_mean_over_steps() -> None:
    """(3 + 9) / (1 + 3) = 3; the losses are (4 + 4) / 4, (8 + 8) / 4 and (2 + 2) / 4:
    2 + 0.5 * 4 - 0.1 * 1.
    """
    weights = ("algorithm.value_weight=0.5", "algorithm.entropy={start: 0.1}")
    algorithm = built(PLAIN, "algorithm.gradient_clip=null", *weights)
    state = algorithm.initial()
    after, metrics = algorithm.tell(state, results(algorithm, (3.0, 1), (9.0, 3)))
    assert (state.theta - after.theta)[:2] == pytest.approx([3.0, 0.0])
    assert after.shared["value"].tolist() == state.shared["value"].tolist()
    assert [metrics[name] for name in ("policy_loss", "value_loss", "entropy")] == [2.0, 4.0, 1.0]
    assert metrics["loss"] == pytest.approx(3.9)
    assert metrics["gradient_norm"] == pytest.approx(3.0)


SAMPLED = {
    "bandits": (),
    "episodes": (
        "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 20}",
        "policy={kind: mlp}",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLED)
def test_losses_of_samples_equal_those_of_the_batch(name: str) -> None:
    """Terms as in the metrics; their sum has the weights 0.5 and the first beta of its schedule."""
    overrides = (
        *SAMPLED[name],
        "algorithm.value_weight=0.5",
        "algorithm.entropy={start: 0.2, episodes: 60}",
    )
    plain = built(*overrides)
    algorithm, state = plain.with_samples(), plain.initial()
    chunks = plain.ask(state, 0, np.zeros(0, ROW), NO_FITNESS)
    outcomes, expected = (
        [item.evaluate(state, chunk, nothing) for chunk in chunks] for item in (algorithm, plain)
    )
    results = Results(
        np.concatenate([one.rows for one in outcomes]), [one.arrays for one in outcomes]
    )
    assert all(
        (one.arrays[GRADIENT] == other.arrays[GRADIENT]).all()
        for one, other in zip(outcomes, expected, strict=True)
    )
    assert all(set(one.arrays) == {GRADIENT, SUMS} for one in expected)
    sample, losses = algorithm.sample(results), algorithm.losses(state, results)
    assert sample["lives"].sum(axis=0).tolist() == results.rows["length"].tolist()
    assert sample["rewards"].sum(axis=0) == pytest.approx(results.rows["return_"])
    metrics = algorithm.tell(state, results)[1]
    build_parts = {name: metrics[name] for name in ("policy_loss", "value_loss", "entropy")}
    total = (
        build_parts["policy_loss"] + 0.5 * build_parts["value_loss"] - 0.2 * build_parts["entropy"]
    )
    assert losses == {**build_parts, "loss": pytest.approx(total, abs=1e-12)}
    assert algorithm.sample_losses(state, sample) == pytest.approx(dict(losses), rel=1e-4)
    with pytest.raises(UserError, match="the sample has no 'lives'"):
        algorithm.sample_losses(
            state, {name: array for name, array in sample.items() if name != "lives"}
        )


def test_samples_of_segments_include_the_initial_memory(tmp_path: Path) -> None:
    overrides = ("task={kind: episodes, env_id: CartPole-v1}", "stop.generations=3")
    asynchronous = (
        "algorithm.updates=asynchronous",
        "algorithm.update_every=5",
        "evaluation.interval=0",
    )
    observed: list[Any] = []
    with hpc_es.train(
        config(*overrides, *asynchronous),
        tmp_path,
        after_train_step=lambda *all: observed.append(all),
    ) as run:
        before = run.state
        for _ in run:
            sample, loss = observed[-1]
            algorithm = run._run._parts.algorithm
            assert algorithm.sample_losses(before, sample) == pytest.approx(dict(loss), rel=1e-4)
            before = run.state
            with pytest.raises(
                UserError,
                match=r"with algorithm.update_every the next batch depends on the last one",
            ):
                run.loss()
    assert sample["memory/0"].shape == (6, 2, 4) and np.abs(sample["memory/0"]).max() > 0
    assert sample["inputs"].shape == (6, 6, 4)


@pytest.mark.parametrize("name", [pytest.param("bandits", marks=pytest.mark.long), "episodes"])
def test_learning_from_samples_of_a_run_repeats_it(name: str, tmp_path: Path) -> None:
    """Also if it is interrupted after two of four updates; evaluations are those of the run."""
    overrides = (
        *SAMPLED[name],
        "algorithm.gae_lambda=0.9",
        "stop.generations=4",
        "mpi.chunk_size=6",
    )
    samples: list[Any] = []
    rows = list(
        hpc_es.train(
            config(*overrides),
            tmp_path / "run",
            after_train_step=lambda sample, _: samples.append(sample),
        )
    )
    expected = runs.newest(tmp_path / "run").state
    for sample, row in zip(samples, rows, strict=True):
        assert np.linalg.norm(sample["gradient"]) == pytest.approx(row["gradient_norm"], rel=1e-5)
    again: list[Any] = []
    for first, last in ((0, 2), (2, 4)):
        with hpc_es.train(config(*overrides), tmp_path / "again") as run:
            again += [run.update(sample) for sample in samples[first:last]]
    with hpc_es.train(config(*overrides), tmp_path / "at once") as run:
        for sample in samples:
            run.update(sample)
    result = runs.newest(tmp_path / "again")
    assert result.state.theta.tobytes() == runs.newest(tmp_path / "at once").state.theta.tobytes()
    # of another graph for bandits
    np.testing.assert_allclose(result.state.theta, expected.theta, atol=1e-5)
    same = ("generation", "return_mean", "length_mean", "evaluation_return_mean", "timesteps_total")
    assert [[row[key] for key in same] for row in again] == [
        [row[key] for key in same] for row in rows
    ]
    assert [row["loss"] for row in again] == pytest.approx([row["loss"] for row in rows], rel=1e-4)
    assert result.counters["episodes"] == 4 * 6


@pytest.mark.long
def test_updates_with_samples_and_own_episodes_alternate(tmp_path: Path) -> None:
    """A run that has ended by a limit returns None once, and refuses further samples."""
    samples: list[Any] = []
    short = config(*SAMPLED["episodes"], "stop.generations=3")
    with hpc_es.train(short, tmp_path, after_train_step=lambda *all: samples.append(all)) as run:
        for row in run:
            if row["generation"] == 0:
                theta = run.theta.copy()
                for name in ("lives", "rewards"):
                    with pytest.raises(
                        UserError, match="with the same steps and episodes as 'rewards'"
                    ):
                        run.update({**samples[0][0], name: np.zeros((5, 2))})
                assert (run.theta == theta).all()
                assert (
                    run.update({**samples[0][0], "rewards": samples[0][0]["rewards"].tolist()})[
                        "generation"
                    ]
                    == 1
                )
        assert row["generation"] == 2 and len(samples) == 3
        with pytest.raises(UserError, match="the run has ended"):
            run.update(samples[0][0])


def test_samples_are_for_synchronous_updates_of_the_actor_critic(tmp_path: Path) -> None:
    programs = (
        "task={kind: programs, name: reverse, max_code_length: 4}",
        "policy=null",
        "algorithm.batch_size=4",
    )
    for name, overrides, text in (
        ("asynchronous", ("algorithm.updates=asynchronous",), "expected 'synchronous' for update"),
        (
            "programs",
            (*programs, "algorithm={kind: policy_gradient}"),
            "expected 'actor_critic' for update",
        ),
    ):
        with (
            hpc_es.train(config(*overrides), tmp_path / name) as run,
            pytest.raises(UserError, match=text),
        ):
            run.update({})


def test_mean_gradient_is_clipped() -> None:
    algorithm = built(PLAIN, "algorithm.gradient_clip=1.5")
    state = algorithm.initial()
    after, metrics = algorithm.tell(state, results(algorithm, (3.0, 1), (9.0, 3)))
    assert (state.theta - after.theta)[0] == pytest.approx(1.5)
    assert metrics["gradient_norm"] == pytest.approx(3.0)


def test_steps_of_failed_episodes_are_not_counted() -> None:
    algorithm = built(PLAIN, "algorithm.gradient_clip=null")
    state = algorithm.initial()
    after, _ = algorithm.tell(state, results(algorithm, (3.0, 1), (0.0, -3)))
    assert (state.theta - after.theta)[0] == pytest.approx(3.0)
    still, _ = algorithm.tell(after, results(algorithm, (0.0, -1), (0.0, -3)))
    assert still.generation == 2 and still.theta.tobytes() == after.theta.tobytes()


def test_evaluation_samples_actions_or_takes_the_greedy_ones() -> None:
    """With zero parameters both arms are sampled; the greedy action is always the first."""
    sampled, greedy = (
        built("task.num_trials=50", f"algorithm.evaluation_actions={how}")
        for how in ("sampled", "greedy")
    )
    state = sampled.initial()
    state = dataclasses.replace(state, shared={**state.shared, "theta": np.zeros_like(state.theta)})
    chunk = Chunk(0, 0, 8, "evaluate")
    first, second = (
        item.evaluate(state, chunk, nothing).rows["return_"] for item in (sampled, greedy)
    )
    assert ((first > 10) & (first < 40)).all()  # a mean of 25, standard deviation 3.5
    assert ((second < 15) | (second > 35)).all()  # 5 or 45, 2.1


# Mistakes.

CARTPOLE = "task={kind: episodes, env_id: CartPole-v1}"
NORMALISATION = "task.observation_normalization.enabled"
MISTAKES = {
    "unknown distribution": (["task.distribution=eazy"], "task.distribution", "'easy'"),
    "no arms": (
        ["task={kind: bandits, distribution: k_armed, family: {num_arms: 0}}"],
        "task.family.num_arms",
        "found 0",
    ),
    "negative trials": (["task.num_trials=-1"], "task.num_trials", "-1"),
    "Box actions": (
        ["task={kind: episodes, env_id: Pendulum-v1}"],
        "task: Pendulum-v1 has Box",
        "needs Discrete ones",
    ),
    "long unroll": (["algorithm.unroll=7"], "algorithm.unroll", "at most 6 steps"),
    "long unroll of an environment": (
        [CARTPOLE, "algorithm.unroll=501"],
        "algorithm.unroll",
        "at most 500 steps",
    ),
    "unroll of nothing": (
        ["policy={kind: mlp}", "algorithm.unroll=5"],
        "algorithm.unroll",
        "leave it out",
    ),
    "programs": (["task={kind: programs, name: reverse}"], "task.kind", "'bandits' or 'episodes'"),
    "several episodes": (["task.episodes_per_job=2"], "task.episodes_per_job", "batch_size"),
    "regret": (["task.training_return=negative_regret"], "task.training_return", "'reward'"),
    "normalisation": (
        ["task.observation_normalization.enabled=true"],
        NORMALISATION,
        "expected false, or algorithm",
    ),
    "normalisation of an environment": (
        [f"{CARTPOLE}", f"{NORMALISATION}=true"],
        NORMALISATION,
        "algorithms that differentiate trajectories do not support it",
    ),
    "rate": (
        ["algorithm.optimizer.learning_rate=0"],
        "algorithm.optimizer.learning_rate",
        "greater than 0",
    ),
    "two schedules": (
        ["algorithm.entropy={episodes: 6, timesteps: 60}"],
        "algorithm.entropy.timesteps",
        "is 60, and episodes 6: expected one of them",
    ),
    "discount": (["algorithm.discount=1.5"], "algorithm.discount", "1.5"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_options_are_refused_before_the_run(mistake: str) -> None:
    overrides, key, text = MISTAKES[mistake]
    with pytest.raises(ConfigError) as message:
        build_task(config(*overrides))
    lines = [line for line in str(message.value).splitlines() if key in line]
    assert len(lines) == 1 and text in lines[0], str(message.value)


@pytest.mark.parametrize("unroll", ["1", "6", "null"])
def test_any_unroll_up_to_the_episode_length_is_valid(unroll: str) -> None:
    build_task(config(f"algorithm.unroll={unroll}"))


@pytest.mark.long
def test_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"policy\.hidden_dims"):
        trained(tmp_path / "run", "policy.hidden_dims=[5]", "stop.generations=3")
    with pytest.raises(ConfigError, match="the networks differ"):
        trained(
            tmp_path / "other", "policy.hidden_dims=[5]", f"policy.init_from={tmp_path / 'run'}"
        )


def test_init_from_copies_the_value_head(tmp_path: Path) -> None:
    trained(tmp_path / "run", "stop.generations=2")
    trained(
        tmp_path / "next", f"policy.init_from={tmp_path / 'run'}", "stop.generations=0", "seed=8"
    )
    expected, result = (runs.newest(tmp_path / name).state for name in ("run", "next"))
    assert all(
        result.shared[name].tobytes() == expected.shared[name].tobytes()
        for name in ("theta", "value")
    )
    assert result.generation == 0 and result.master["optimizer_steps"] == 0


# What a run leaves (T30 to T34).


def saved(run: Path) -> dict[int, int]:
    """The optimizer's count of steps in each checkpoint, by generation."""
    states = [load_checkpoint(path).state for path in Store(run / "checkpoints").paths()]
    return {state.generation: int(state.master["optimizer_steps"]) for state in states}


def test_checkpoints_hold_the_optimizer_from_the_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run, "stop.generations=0")
    assert saved(run) == {0: 0}
    master = runs.newest(run).state.master
    assert not master["adam_m"].any() and not master["adam_v"].any()
    trained(run, "stop.generations=0")
    assert saved(run) == {0: 0}  # opened again, it is not saved again
    trained(run, "stop.generations=1")
    assert saved(run)[1] == 1
    assert runs.newest(run).state.master["adam_m"].any()


def test_last_checkpoints_are_kept_and_the_final_one_is_always_written(tmp_path: Path) -> None:
    trained(tmp_path / "often", "stop.generations=5", "checkpoint.keep_last=3")
    assert sorted(saved(tmp_path / "often"))[-3:] == [3, 4, 5]
    trained(tmp_path / "once", "stop.generations=5", "checkpoint.interval=100")
    assert max(saved(tmp_path / "once")) == 5


def test_run_changes_the_parameters_and_its_losses_are_finite(tmp_path: Path) -> None:
    rows = trained(tmp_path / "run")
    before, after = built().initial(), runs.newest(tmp_path / "run").state
    assert all((after.shared[name] != before.shared[name]).any() for name in ("theta", "value"))
    assert all(
        np.isfinite([row["policy_loss"], row["value_loss"], row["entropy"]]).all() for row in rows
    )
    assert rows[0]["entropy"] == pytest.approx(np.log(2), abs=1e-3)


def test_evaluations_change_no_parameter(tmp_path: Path) -> None:
    """Bit-identical for any number and length of evaluations."""
    often, never = tmp_path / "often", tmp_path / "never"
    trained(often, "evaluation={interval: 1, episodes: 9}")
    trained(never, "evaluation.interval=0")
    assert runs.newest(often).state.theta.tobytes() == runs.newest(never).state.theta.tobytes()


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("policy={kind: lstm, hidden_dims: [4, 3]}", marks=pytest.mark.long),
        "policy={kind: mlp, hidden_dims: []}",
    ],
)
def test_trained_policy_is_loaded(policy: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", policy)
    loaded = hpc_es.load_policy(tmp_path / "run")
    assert loaded(np.zeros(4)) in {0, 1}


# It learns.


@pytest.mark.long
def test_actor_critic_learns_to_explore_bandits(tmp_path: Path) -> None:
    """Easy arms, 10 trials: 5 by chance; following the first reward gives 0.5 + 9 * 0.82 = 7.88."""
    overrides = [
        *(
            "task.num_trials=10",
            "policy.hidden_dims=[16]",
            "algorithm.batch_size=32",
            "mpi.chunk_size=32",
        ),
        *(
            "algorithm.optimizer.learning_rate=0.01",
            "algorithm.entropy={start: 0.1, episodes: 9600}",
        ),
        *(
            "stop.generations=300",
            "evaluation={interval: 299, episodes: 500}",
            "checkpoint.interval=0",
        ),
    ]
    rows = trained(tmp_path / "run", *overrides)
    assert rows[0]["evaluation_return_mean"] == pytest.approx(5.0, abs=0.6)
    assert rows[299]["evaluation_return_mean"] > 7.0


@pytest.mark.long
def test_actor_critic_learns_cartpole(tmp_path: Path) -> None:
    """The committed config, stopped early: constant pushing lasts 9 steps,
    a random policy about 20.
    """
    overrides = ["stop.timesteps=60_000", "stop.target_return=195"]
    rows = list(hpc_es.train(load(CONFIGS / "ac_cartpole.yaml", overrides), tmp_path / "run"))
    assert max(row["evaluation_return_mean"] or 0 for row in rows) >= 195
