"""`for row in hpc_es.train(config, output)`: rows on rank 0, none on other ranks;
all ranks end together.
"""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es.api.train import TrainingRun
from hpc_es.core.errors import ConfigError, RunError, UserError
from hpc_es.core.global_generators import restored_generators
from hpc_es.training import updates
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, mpiexec, python, script

HEAD = """
import sys
from pathlib import Path
import hpc_es
from hpc_es.config.loading import load
from hpc_es.core.errors import UserError
from hpc_es.mpi.connect import connect

directory = Path(sys.argv[1])
path = directory / "tiny.yaml"
rank = connect().rank
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six generations by the command line, with a checkpoint of each."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *runs.EVERY)
    return run


def program(ranks: int, directory: Path, body: str) -> Finished:
    """Run these lines on this number of ranks; 0 is without a launcher."""
    runs.tiny(directory)
    args = ["-c", HEAD + script(body)[1], str(directory)]
    return mpiexec(ranks, args, cwd=ROOT) if ranks else python(args, cwd=ROOT)


@pytest.mark.parametrize("ranks", [0, 3])
def test_train_yields_rows_on_rank_0_only(ranks: int, reference: Path, tmp_path: Path) -> None:
    done = program(
        ranks,
        tmp_path,
        """
        rows = list(hpc_es.train(path, directory / "run"))
        assert [row["generation"] for row in rows] == ([] if rank else list(range(6))), rows
        if rank == 0:
            assert all(isinstance(row["return_mean"], float) for row in rows)
        print(f"rank {rank} ended")
        """,
    )
    assert done.status == 0 and done.stderr == "", str(done)
    assert all(f"rank {rank} ended" in done.stdout for rank in range(max(ranks, 1)))
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize("ranks", [pytest.param(0, marks=pytest.mark.long), 3])
def test_breaking_out_leaves_a_checkpoint_and_ends_all_ranks(
    ranks: int, reference: Path, tmp_path: Path
) -> None:
    done = program(
        ranks,
        tmp_path,
        """
        for row in hpc_es.train(load(path, ["checkpoint.interval=0"]), directory / "run"):
            if row["generation"] == 2:
                break
        print(f"rank {rank} ended")
        """,
    )
    assert done.status == 0 and all(
        f"rank {rank} ended" in done.stdout for rank in range(max(ranks, 1))
    ), str(done)
    assert runs.newest(tmp_path / "run").state.generation == 3
    assert runs.status(tmp_path / "run")["reason"] == "the caller"
    runs.assert_same(tmp_path / "run", reference)
    runs.finished(2, tmp_path / "run")
    runs.assert_same(tmp_path / "run", reference)


def test_two_runs_and_a_resumed_one_work_in_one_process(reference: Path, tmp_path: Path) -> None:
    done = program(
        2,
        tmp_path,
        """
        import yaml
        first = list(hpc_es.train(load(path, ["stop.generations=4"]), directory / "first"))
        second = list(hpc_es.train(yaml.safe_load(path.read_text()), directory / "second"))
        rest = list(hpc_es.train(path, directory / "first"))
        assert [len(rows) for rows in (first, second, rest)] == ([0, 0, 0] if rank else [4, 6, 2])
        """,
    )
    assert done.status == 0, str(done)
    runs.assert_same(tmp_path / "first", reference)
    runs.assert_same(tmp_path / "second", reference)


def test_overrides_change_keys_of_a_file(reference: Path, tmp_path: Path) -> None:
    body = """
        first = list(hpc_es.train(path, directory / "run", overrides=["stop.generations=4"]))
        rest = list(hpc_es.train(path, directory / "run"))
        assert [len(rows) for rows in (first, rest)] == ([0, 0] if rank else [4, 2])
        """
    done = program(2, tmp_path, body)
    assert done.status == 0, str(done)
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": 5}, "config: expected a path, a config string or a mapping, found int"),
        ({"output": ["seed=2"]}, "output: expected a path, found list"),
        ({"overrides": "seed=2"}, "overrides: expected a list of texts .*, found 'seed=2'"),
        ({"overrides": {"seed": 2}}, "overrides: go with a YAML file or a config string"),
        ({"overrides": [2]}, r"overrides: expected a list of texts .*, found \[2\]"),
    ],
)
def test_arguments_of_other_types_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {
        "config": {"task": {"env_id": "CartPole-v1"}},
        "output": tmp_path / "run",
    }
    with pytest.raises(UserError, match=message):
        hpc_es.train(**usual | arguments)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [0, 3])
def test_invalid_config_raises_a_catchable_user_error(
    ranks: int, reference: Path, tmp_path: Path
) -> None:
    done = program(
        ranks,
        tmp_path,
        f"""
        def mistakes():
            yield {{"algorithm": {{"sigma": 0}}}}
            yield directory / "nothing.yaml"
            yield load(path, ["policy.init_from={reference}", "policy.hidden_dims=[9]"]) if rank == 0 else path
        for config in mistakes():
            try:
                list(hpc_es.train(config, directory / "run"))
                raise AssertionError("no error")
            except (UserError if rank == 0 else SystemExit) as error:
                if rank == 0:
                    print(f"caught {{type(error).__name__}}: {{error}}")
        assert len(list(hpc_es.train(path, directory / "run"))) == (0 if rank else 6)  # all go on together
        """,
    )
    assert done.status == 0, str(done)
    assert done.stdout.count("caught ConfigError: ") == 3 and "the networks differ" in done.stdout
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize("ranks", [0, 3])
def test_uncaught_user_error_ends_all_ranks(ranks: int, tmp_path: Path) -> None:
    done = program(
        ranks, tmp_path, """list(hpc_es.train({"algorithm": {"sigma": 0}}, directory / "run"))"""
    )
    assert done.status == 2 and not done.timed_out and done.seconds < 10, str(done)
    assert done.stderr.count("algorithm.sigma: expected a number greater than 0, found 0") == 1, (
        done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=pytest.mark.long)])
def test_exception_in_the_body_ends_all_ranks(ranks: int, tmp_path: Path) -> None:
    done = program(
        ranks,
        tmp_path,
        """
        for row in hpc_es.train(path, directory / "run"):
            if row["generation"] == 2:
                raise ZeroDivisionError("in the body")
        """,
    )
    assert done.status == 1 and not done.timed_out and done.seconds < 10, str(done)
    assert "ZeroDivisionError: in the body" in done.stderr
    runs.finished(2, tmp_path / "run")


def test_signal_ends_the_loop_and_the_program_continues(reference: Path, tmp_path: Path) -> None:
    done = program(
        2,
        tmp_path,
        """
        import os, signal
        before = signal.getsignal(signal.SIGTERM)
        rows = 0
        for row in hpc_es.train(path, directory / "run"):
            rows += 1
            if rows == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        assert rows == (0 if rank else 3), rows
        assert signal.getsignal(signal.SIGTERM) == before
        """,
    )
    assert done.status == 0, str(done)
    assert runs.status(tmp_path / "run")["status"] == "interrupted"
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.long
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_run_deleted_in_another_thread_is_closed_by_the_next_one(tmp_path: Path) -> None:
    """As by the garbage collector in a thread of JAX, which may not restore signal handlers."""
    before = signal.getsignal(signal.SIGTERM)
    runs_in_progress = [hpc_es.train(runs.tiny(tmp_path), tmp_path / "run")]
    next(runs_in_progress[0])
    thread = threading.Thread(target=runs_in_progress.clear)
    thread.start()
    thread.join()
    assert len(list(hpc_es.train(tmp_path / "tiny.yaml", tmp_path / "run"))) == 5
    assert signal.getsignal(signal.SIGTERM) == before


# Looking in.

LEARNER = """
seed: 1
task: {kind: programs, name: reverse, max_code_length: 6}
algorithm: {kind: policy_gradient, batch_size: 8, policy_lstm_sizes: [5], topk: 0}
mpi: {chunk_size: 2}
stop: {generations: 4}
report: {plot_interval_seconds: 0}
"""


@pytest.mark.parametrize("ranks", [0, 3])
def test_reading_losses_and_samples_does_not_change_results(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "learner.yaml").write_text(LEARNER)
    done = program(
        ranks,
        tmp_path,
        """
        path = directory / "learner.yaml"
        list(hpc_es.train(path, directory / "plain"))
        seen = []
        def hook(sample, loss):
            seen.append((sample, loss, run.theta))
        with hpc_es.train(path, directory / "run", after_train_step=hook) as run:
            theta, expected = run.theta.copy(), run.loss()
            assert (expected is None) == (rank != 0)
            for row in run:
                sample, loss, after = seen[-1]
                assert loss == expected and loss["policy_loss"] == row["policy_loss"], (loss, expected, row)
                assert sample["tokens"].shape == (8, 6) and sample["rewards"].mean() == row["return_mean"]
                assert (after == run.theta).all() and not (after == theta).all()
                of_sample, theta, expected = run.loss(sample), run.theta.copy(), run.loss()
                assert of_sample["loss"] != loss["loss"] and (run.theta == theta).all()
        assert len(seen) == (0 if rank else 4)
        if rank == 0:
            for arguments in ((), ({"tokens": sample["tokens"]},)):
                try:
                    run.loss(*arguments)
                except UserError as error:
                    print(error)
        """,
    )
    assert done.status == 0, str(done)
    assert runs.digests(tmp_path / "run") == runs.digests(tmp_path / "plain")
    assert runs.rows(tmp_path / "run") == runs.rows(tmp_path / "plain")
    assert (
        "the run has ended and its environments are closed: pass a sample to loss()" in done.stdout
    )
    assert "the sample has no 'rewards': expected one as after_train_step gets it" in done.stdout


def test_losses_exist_for_gradient_algorithms_only(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"algorithm.kind: is 'es', which has no loss: after_train_step is for 'actor",
    ):
        hpc_es.train(
            runs.tiny(tmp_path), tmp_path / "run", after_train_step=lambda sample, loss: None
        )
    with (
        hpc_es.train(runs.tiny(tmp_path), tmp_path / "run") as run,
        pytest.raises(ConfigError, match=r"which has no loss: loss\(\) is for"),
    ):
        run.loss()


def test_trigger_with_two_arguments_gets_the_generation_and_the_run(tmp_path: Path) -> None:
    calls: list[tuple[object, ...]] = []

    def both(generation: int, run: TrainingRun) -> None:
        calls.append(("both", generation, run.state.generation, run.directory))

    def none(ignored: int = 0, other: int = 0) -> None:
        calls.append(("none", ignored))

    triggers = [
        (both, 2),
        (none, 3),
        hpc_es.IntervalTrigger(lambda n, run: calls.append(("mine", n)), 4, name="mine"),
    ]
    for _ in hpc_es.train(runs.tiny(tmp_path), tmp_path / "run", triggers=triggers):
        pass
    two, four, six = (("both", n, n, tmp_path / "run") for n in (2, 4, 6))
    assert calls == [two, ("none", 0), four, ("mine", 4), six, ("none", 0), ("mine", 6)]


# The caller's random generators.

GLOBALS = runs.TINY.replace("trouble:Rough-v0", "toys:Globals-v0").replace(
    "chunk_size: 4", "chunk_size: 1"
)


def draw() -> tuple[float, float]:
    return random.random(), np.random.standard_normal()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)


@pytest.mark.long
def test_caller_draws_from_its_own_generators(tmp_path: Path) -> None:
    """In the body, in triggers, and after a run that was left early;
    the results do not depend on them.
    """
    config, seen = runs.tiny(tmp_path, GLOBALS), list[tuple[float, float]]()
    with restored_generators():
        seed(1)
        expected = [draw() for _ in range(12)]
        seed(1)
        with hpc_es.train(
            config, tmp_path / "run", triggers=[(lambda: seen.append(draw()), 1)]
        ) as run:
            seen.append(draw())
            for row in run:
                seen.append(draw())
                if row["generation"] == 2:
                    break
        seen.append(draw())
        assert len(list(hpc_es.train(config, tmp_path / "run"))) == 3
        assert [*seen, draw()] == expected[: len(seen) + 1] and len(seen) == 8
        seed(2)
        list(hpc_es.train(config, tmp_path / "other"))
    runs.assert_same(tmp_path / "run", tmp_path / "other")


def test_all_ranks_draw_the_same_after_a_run(tmp_path: Path) -> None:
    done = program(
        2,
        tmp_path,
        """
        import numpy as np
        np.random.seed(1)
        list(hpc_es.train(path, directory / "run"))
        hpc_es.minimize(lambda x: float(x @ x), [1.0, 2.0], 0.3, max_evaluations=60)
        sys.stdout.write(f"drew {np.random.random()!r}\\n")
        """,
    )
    assert done.status == 0, str(done)
    expected = np.random.RandomState(1).random_sample()
    assert done.stdout.count(f"drew {expected!r}\n") == 2, str(done)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, StopIteration, KeyboardInterrupt])
def test_trigger_that_would_end_the_program_is_an_error(
    error: type[BaseException], tmp_path: Path
) -> None:
    def quits() -> None:
        raise error

    with restored_generators():
        seed(1)
        expected = draw()
        seed(1)
        text = rf"the trigger quits must not .*{error.__name__}.*: run.stop\(\) ends the run"
        with pytest.raises(RunError, match=text):
            list(hpc_es.train(runs.tiny(tmp_path), tmp_path / "run", triggers=[(quits, 2)]))
        assert draw() == expected
    assert runs.status(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_exit_outside_of_an_evaluation_is_an_error(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the update of a custom algorithm;
    GeneratorExit is not taken for a run that is left early.
    """

    def update(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(updates, "update_state", update)
    with pytest.raises(
        RunError, match=rf"^code of yours must not end the program, but raised {error.__name__} "
    ):
        list(hpc_es.train(runs.tiny(tmp_path), tmp_path / "run"))
    status = runs.status(tmp_path / "run")
    assert (status["status"], status["exit_status"]) == ("failed", 1)
    assert error.__name__ in status["reason"]


@pytest.mark.long
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_train_in_a_thread_gives_the_same_run(reference: Path, tmp_path: Path) -> None:
    """Also if it is left early, and closed by another thread."""
    before, config, left = (
        signal.getsignal(signal.SIGTERM),
        runs.tiny(tmp_path),
        list[TrainingRun](),
    )

    def work() -> None:
        run = hpc_es.train(config, tmp_path / "run")
        next(run)
        left.append(run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    left.pop().close()
    with hpc_es.train(config, tmp_path / "run") as run:
        next(run)
        closed: list[bool] = []  # by a thread that cannot restore the handlers of signals
        thread = threading.Thread(target=lambda: closed.append(run.close() is None))
        thread.start()
        thread.join()
        assert closed
    assert signal.getsignal(signal.SIGTERM) == before
    thread = threading.Thread(target=lambda: list(hpc_es.train(config, tmp_path / "run")))
    thread.start()
    thread.join()
    runs.assert_same(tmp_path / "run", reference)


@pytest.mark.long
def test_arrays_of_a_run_cannot_be_changed_through_the_callers_views(tmp_path: Path) -> None:
    with hpc_es.train(runs.tiny(tmp_path), tmp_path / "run") as run:
        for _ in run:
            theta = run.theta
            theta *= 0
            with pytest.raises(ValueError, match="read-only"):
                run.state.theta[:] = 0
    list(hpc_es.train(runs.tiny(tmp_path), tmp_path / "other"))
    runs.assert_same(tmp_path / "run", tmp_path / "other")


def test_config_with_values_of_python_is_that_of_the_file(tmp_path: Path) -> None:
    body = """
        import numpy as np
        from hpc_es.config.loading import read
        data = dict(read(path))
        data["seed"] = np.int64(data.get("seed", 0))
        data["algorithm"] = {**data["algorithm"], "sigma": np.float64(data["algorithm"].get("sigma", 0.02))}
        data["stop"] = {name: np.uint16(value) for name, value in data["stop"].items()}
        data["output"], data["policy"] = directory / "given", {"hidden_dims": np.array([4, 4])}
        runs = [hpc_es.train(data), hpc_es.train({**data, "policy": {"hidden_dims": (4, 4)}}, directory / "other")]
        for run in runs:
            for row in run:
                pass
        assert (runs[0].theta == runs[1].theta).all()
        assert runs[0].directory == directory / "given", runs[0].directory
        try:
            hpc_es.train({**data, "report": {"loggers": {1}}, "task": {"env_id": print}}, "never")
        except UserError as error:
            sys.stdout.write(str(error))
    """
    done = program(0, tmp_path, body)
    assert (
        "task.env_id: expected text" in done.stdout
        and "report.loggers: expected text" in done.stdout
    ), str(done)
