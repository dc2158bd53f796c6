"""`for row in hpc_es.train(config, output)`: on rank 0 the rows, on the others nothing, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import runs
from tests.harness import ROOT, Finished, mpiexec, python, script

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
    """Six generations of the command line, each of them in a checkpoint."""
    run = tmp_path_factory.mktemp("reference") / "run"
    runs.finished(0, run, *runs.EVERY)
    return run


def program(ranks: int, directory: Path, body: str) -> Finished:
    """Run these lines on so many ranks; 0 is without a launcher."""
    runs.tiny(directory)
    args = ["-c", HEAD + script(body)[1], str(directory)]
    return mpiexec(ranks, args, cwd=ROOT) if ranks else python(args, cwd=ROOT)


@pytest.mark.parametrize("ranks", [0, 3])
def test_rows_come_on_rank_0_only(ranks: int, reference: Path, tmp_path: Path) -> None:
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
def test_breaking_out_leaves_a_checkpoint_and_ends_all_ranks(ranks: int, reference: Path, tmp_path: Path) -> None:
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
    assert done.status == 0 and all(f"rank {rank} ended" in done.stdout for rank in range(max(ranks, 1))), str(done)
    assert runs.newest(tmp_path / "run").state.generation == 3
    assert runs.status(tmp_path / "run")["reason"] == "the caller"
    runs.assert_same(tmp_path / "run", reference)
    runs.finished(2, tmp_path / "run")
    runs.assert_same(tmp_path / "run", reference)


def test_two_trainings_in_one_process_and_one_that_goes_on(reference: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_mistake_is_a_user_error_that_may_be_caught(ranks: int, reference: Path, tmp_path: Path) -> None:
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
def test_a_mistake_that_is_not_caught_ends_all_ranks(ranks: int, tmp_path: Path) -> None:
    done = program(ranks, tmp_path, """list(hpc_es.train({"algorithm": {"sigma": 0}}, directory / "run"))""")
    assert done.status == 2 and not done.timed_out and done.seconds < 10, str(done)
    assert done.stderr.count("algorithm.sigma: expected a number greater than 0, found 0") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=pytest.mark.long)])
def test_an_exception_in_the_body_ends_all_ranks(ranks: int, tmp_path: Path) -> None:
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


def test_a_signal_ends_the_loop_and_the_program_goes_on(reference: Path, tmp_path: Path) -> None:
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
