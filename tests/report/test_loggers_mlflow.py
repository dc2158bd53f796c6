"""Runs in MLflow's local file store, read back with MLflow's own client:
`make test-loggers` has the package.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.schema import Mlflow
from hpc_es.core.errors import UserError
from hpc_es.core.run_files import UnusualFileError
from hpc_es.report.loggers import (
    MLFLOW_ENVIRONMENT,
    LoggedRun,
    MLflow,
    _locked,
    _require_own_store,
    truncate,
)
from hpc_es.storage import metrics_log
from tests.helpers import runs
from tests.jobs.test_long_runs import assert_flat

if not find_spec("mlflow"):  # not imported here: that is the logger's, with telemetry off
    pytest.skip("mlflow is not installed here: make test-loggers", allow_module_level=True)
ON = "report.loggers=[mlflow]"


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent connections of this process and requests of telemetry settings,
    which would be stored in the home.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection"))
    for name in MLFLOW_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # what the logger sets ends with the test
        monkeypatch.delenv(name)


def client(store: Path) -> Any:
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=store.as_uri(), registry_uri=store.as_uri())


def logged(store: Path) -> list[Any]:
    """The runs of the experiment."""
    result = client(store)
    return list(result.search_runs([result.get_experiment_by_name("hpc_es").experiment_id]))


def history(store: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a metric of the only run."""
    (only,) = logged(store)
    return [
        (item.step, item.value) for item in client(store).get_metric_history(only.info.run_id, name)
    ]


def expected(run: Path, key: str) -> list[tuple[Any, Any]]:
    return [
        (row["generation"], row[key])
        for row in metrics_log.read_metrics(run)
        if row[key] is not None
    ]


def assert_logged(run: Path, store: Path) -> None:
    for key, name in (
        ("return_mean", "return/mean"),
        ("evaluation_return_mean", "evaluation/return_mean"),
    ):
        assert history(store, name) == expected(run, key)
    # of the rows that are there, by the clock
    assert history(store, "seconds/total") == expected(run, "seconds_total")


def test_mlflow_stores_the_run_with_its_config(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "run" / "mlruns"
    runs.here(runs.tiny(tmp_path), run, [ON])
    assert_logged(run, store)
    assert len(history(store, "return/mean")) == 6
    (only,) = logged(store)
    assert only.info.status == "FINISHED" and only.info.run_name == "tiny"
    assert (
        only.data.params["algorithm.sigma"] == "0.1"
        and only.data.params["evaluation.interval"] == "2"
    )
    assert runs.newest(run).provenance["loggers"] == {"mlflow": only.info.run_id}
    assert not (tmp_path / "home").exists()
    assert not [path for path in store.rglob("*") if path.suffix in {".pkl", ".pickle"}]


def test_mlflow_run_is_continued_by_a_resume_without_duplicate_steps(tmp_path: Path) -> None:
    config, run, store = runs.tiny(tmp_path), tmp_path / "run", tmp_path / "run" / "mlruns"
    runs.here(config, run, [ON, "checkpoint.interval=1"])
    for generation in (5, 6):
        # as a kill at generation 4 leaves it
        (run / "checkpoints" / f"checkpoint_{generation:010d}.h5").unlink()
    runs.here(config, run, [ON, "stop.generations=5"])
    assert [step for step, _ in history(store, "return/mean")] == [0, 1, 2, 3, 4]
    assert_logged(run, store)


def test_mlflow_run_is_continued_after_a_kill(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "run" / "mlruns"
    with runs.begin(2, run, ON, "stop.generations=1000", "checkpoint.interval=5") as job:
        runs.wait_for(lambda: runs.generation(run) > 12, 120)
        job.signal(0, signal.SIGKILL)
        job.wait()
    done = runs.generation(run) + 3
    runs.finished(2, run, ON, f"stop.generations={done}")
    assert [step for step, _ in history(store, "return/mean")] == list(range(done))
    assert_logged(run, store)


def test_mlflow_added_later_gets_the_earlier_rows(tmp_path: Path) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    runs.here(config, run, ["stop.generations=3"])
    runs.here(config, run, [ON, "stop.generations=4"])
    assert_logged(run, run / "mlruns")


def test_lost_mlflow_store_disables_the_logger_only(tmp_path: Path) -> None:
    """Each session runs in its own process, because MLflow remembers its stores."""
    run = tmp_path / "run"
    runs.finished(0, run, ON, "stop.generations=3")
    shutil.rmtree(run / "mlruns")
    (run / "mlruns").write_text("in the way")
    runs.finished(0, run, ON, "stop.generations=4")
    assert (run / "log.txt").read_text().count("WARNING: report.loggers: mlflow has failed") == 1
    (run / "mlruns").unlink()
    runs.finished(0, run, ON, "stop.generations=5")
    assert_logged(run, run / "mlruns")


def test_repetitions_can_share_an_mlflow_store(tmp_path: Path) -> None:
    options = (ON, "report.mlflow={directory: ../store, experiment: hpc_es}", "stop.generations=1")
    runs.finished(2, tmp_path / "a" / "run", *options, "repetitions=2", "repetition_groups=2")
    names = sorted(item.info.run_name for item in logged(tmp_path / "store"))
    assert names == ["tiny/repetition_0000", "tiny/repetition_0001"]


def test_memory_with_mlflow_does_not_grow_with_generations(tmp_path: Path) -> None:
    # takes minutes
    assert_flat(tmp_path / "run", "report={loggers: [mlflow], plot_interval_seconds: 0}")


def test_cut_drops_steps_and_incomplete_lines(tmp_path: Path) -> None:
    texts = {
        "a": "5 1.5 0\n5 2.5 4\n6 3.5 7\n",
        "b/c": "5 1 7\n",
        "d": "5 1 0\n5 1",
        "e": "5 1 2\n5 1 3",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert truncate(tmp_path, 7) == 5
    left = {
        path.relative_to(tmp_path).as_posix(): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert left == {"a": "5 1.5 0\n5 2.5 4\n", "d": "5 1 0\n", "e": "5 1 2\n"}


def test_id_of_another_run_in_a_shared_store_is_not_used(tmp_path: Path) -> None:
    """A checkpoint that somebody else has written may have it."""
    store, first = tmp_path / "shared", None
    for name in ("a", "b", "a"):
        logger = MLflow(Mlflow(directory=str(store)))
        run_id = logger.start(LoggedRun(tmp_path / name, name, {}), first, 0).run_id
        logger.write({"generation": 0, "return_mean": 1.0})
        logger.close("finished")
        first = first or run_id
        assert (run_id == first) == (name == "a")
    assert len(logged(store)) == 2


def others_link(path: Path, target: Path) -> None:
    """Put a link of another user in the place of a file."""
    path.rename(path.with_name("moved"))
    path.symlink_to(target)
    os.lchown(path, 65534, 65534)


@pytest.mark.parametrize(
    "where", ["{}/tags/x", "{}/tags/a/b/x", ".trash/9/meta.yaml", ".trash/9/tags/x"]
)
def test_pipes_and_large_files_of_experiments_are_not_opened(where: str, tmp_path: Path) -> None:
    """MLflow reads the metadata and tags of all experiments, also of those in its trash."""
    run, store = tmp_path / "run", tmp_path / "run" / "mlruns"
    runs.finished(0, run, ON, "stop.generations=1")
    (meta,) = store.glob("*/*/meta.yaml")
    other = store / where.format(meta.parents[1].name)
    other.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(other)
    with pytest.raises(UserError, match=f"found {other.name}"):
        _require_own_store(store)
    other.unlink()
    other.write_text("x" * 70_000)
    with pytest.raises(UnusualFileError, match="has 70,000 bytes"):
        _require_own_store(store)


@pytest.mark.parametrize("kind", ["link", "link of metric", "pipe", "large", "experiment", "run"])
def test_store_of_somebody_else_is_not_entered(kind: str, tmp_path: Path) -> None:
    """MLflow opens the files of its store without a look."""
    if kind.startswith("link") and os.geteuid() != 0:
        pytest.skip("only root can give links away")
    run, secret = tmp_path / "run", tmp_path / "secret"
    runs.finished(0, run, ON, "stop.generations=3", "checkpoint.interval=1")
    secret.write_text("1 2 0\n1 2 1\n1 2 2\n")
    (meta,) = (run / "mlruns").glob("*/*/meta.yaml")
    match kind:
        case "link":
            others_link(meta, meta.with_name("moved"))  # with what MLflow expects
        case "link of metric":
            others_link(meta.parent / "metrics" / "return" / "mean", secret)
        case "pipe":
            meta.unlink()
            os.mkfifo(meta)
        case "large":
            os.truncate(meta.parents[1] / "meta.yaml", 1 << 40)
        case "experiment":
            experiment = meta.parents[1].name
            meta.write_text(meta.read_text().replace(experiment, f"'../mlruns/{experiment}'"))
        case _:
            meta.write_text(meta.read_text().replace(meta.parent.name, "../x"))
    (run / "checkpoints" / "checkpoint_0000000003.h5").unlink()
    runs.finished(0, run, ON, "stop.generations=4")
    assert secret.read_text() == "1 2 0\n1 2 1\n1 2 2\n"
    log = (run / "log.txt").read_text()
    if kind in {"experiment", "run"}:
        assert "Traceback" not in log
    else:
        assert "WARNING: report.loggers: mlflow has failed" in log


def test_store_whose_experiments_take_minutes_is_not_read(tmp_path: Path) -> None:
    """YAML of a megabyte takes MLflow 20 seconds."""
    for number in range(20):
        folder = tmp_path / "store" / str(number)
        folder.mkdir(parents=True)
        (folder / "meta.yaml").write_text("a: {" + "1," * 30_000 + "}")
    with pytest.raises(UnusualFileError, match=r"has experiments of 1,200,[0-9]+ bytes"):
        _require_own_store(tmp_path / "store")


def test_strangers_cannot_hold_the_lock_of_a_store(tmp_path: Path) -> None:
    """Whoever may read a directory can lock it, but not a file that he cannot open."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    start = time.monotonic()
    with _locked(tmp_path / "store"):
        lock = tmp_path / ".store.lock"
        assert lock.stat().st_mode & 0o007 == 0
        other = os.open(lock, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    assert time.monotonic() - start < 10
    os.close(descriptor)
