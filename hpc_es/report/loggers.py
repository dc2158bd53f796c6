"""Loggers: TensorBoard, MLflow and Weights & Biases, their contract, and the loggers of a run.

Each receives every row of metrics.jsonl, and imports its package in `start`. A logger that fails is
dropped with a warning, and the run continues.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from hpc_es.config.registry import config_path
from hpc_es.config.schema import Mlflow, Report, Wandb
from hpc_es.core import run_files
from hpc_es.core.data import Array, JsonObject
from hpc_es.core.paths import followed
from hpc_es.core.run_files import (
    LARGEST_TEXT,
    UnusualFileError,
    is_regular,
    open_file,
    read_bytes,
    require_own_directory,
    require_own_entries,
)
from hpc_es.core.settings_files import WANDB, settings_of_user
from hpc_es.storage.metrics_log import Row
from hpc_es.storage.status import EndStatus

Param = str | int | float | bool | None

GROUPS = (
    "answer",
    "evaluation",
    "return",
    "centre",
    "value",
    "score",
    "length",
    "info",
    "time",
    "predict",
    "episodes",
    "evaluations",
    "timesteps",
    "seconds",
)


@dataclass(frozen=True)
class LoggedRun:
    """The argument of `Logger.start`."""

    directory: Path
    name: str
    params: Mapping[str, Param]  # the config, as `flat` returns it

    @property
    def mark(self) -> str:
        """What names its directory in the records of a logger: a checkpoint of somebody else could
        have the id of another run of this user.
        """
        return hashlib.sha256(str(followed(self.directory)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Started:
    """The state of a logger after its start."""

    # the package's id of the run, kept in checkpoints; None if the directory identifies the run
    run_id: str | None
    next_generation: int  # the first generation whose row it lacks


MARK = "hpc_es.directory"  # the name of a tag or file with the mark of a run
# Of MLflow and Weights & Biases. It comes from a checkpoint, which may be of somebody else.
ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Logger(Protocol):
    """One package that records the rows of a run.

    Any error of its methods drops the logger, never the run.
    """

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Start a new run, or resume the run of this id.

        It drops rows from generation `first` on. These rows will be written again.
        """

    def write(self, row: Row) -> None:
        """Record the metrics of a generation; the generation is the step."""

    def close(self, status: EndStatus) -> None:
        """Record how the run ended, and close the logger."""


def tag(key: str) -> str:
    """Return the name of a metric with its group: return/mean for return_mean, train/sigma."""
    for group in GROUPS:
        if key.startswith(f"{group}_"):
            return f"{group}/{key.removeprefix(f'{group}_')}"
    return f"train/{key}"


def metrics(row: Row) -> dict[str, float]:
    """Return the measured numbers of a row by tag, without the generation."""
    return {
        tag(key): value
        for key, value in row.items()
        if key != "generation" and value is not None and math.isfinite(value)
    }


def step(row: Row) -> int:
    """Return the generation of a row."""
    generation = row["generation"]
    assert generation is not None
    return int(generation)


def flat(data: JsonObject, prefix: str = "") -> dict[str, Param]:
    """Flatten nested data to {"algorithm.sigma": 0.1}.

    Lists and empty mappings become JSON text.
    """
    result: dict[str, Param] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float)
            result[f"{prefix}{key}"] = value if plain else json.dumps(value)
    return result


class TensorBoard:
    """TensorBoard: one scalar per metric, against generations and wall time.

    Each session writes an event file into the run directory, or into a folder of
    `report.tensorboard_directory`, whose name is kept in checkpoints. TensorBoard reads all files
    of a directory as one run, and drops the rows of earlier sessions from `first` on.

    Only the record writer of the tensorboard package is used. Its EventFileWriter imports
    TensorFlow if that is installed, which takes seconds and 500 MB, and raises the error of a full
    disk in a separate thread.
    """

    _event: Any
    _records: Any
    _file: BinaryIO

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        folder = run.directory
        if self._directory is not None:
            directory = config_path(self._directory)
            folder = _own_folder(directory, run, run_id)
            run_id = str(folder.relative_to(directory))
        has_rows = any(folder.glob("events.out.tfevents.*"))
        self._file = open_file(_event_path(folder), "wb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        # TensorBoard drops nothing at the first START that it reads, so every session writes one.
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=first, session_log=session)
        self._write_hyperparameters(run.params)
        return Started(run_id, first if has_rows else 0)

    def _write_hyperparameters(self, params: Mapping[str, Param]) -> None:
        """Record the config for the tab HPARAMS, which compares runs by it."""
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

        info = SessionStartInfo(start_time_secs=time.time())
        for key, value in params.items():
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, int | float):
                info.hparams[key].number_value = value
            else:
                info.hparams[key].string_value = "null" if value is None else value
        content = metadata.create_summary_metadata(HParamsPluginData(session_start_info=info))
        # The tab reads the metadata; the tensor has no meaning, but an event without one is
        # ignored.
        entry = {
            "tag": metadata.SESSION_START_INFO_TAG,
            "metadata": content,
            "tensor": metadata.NULL_TENSOR,
        }
        self._add(summary={"value": [entry]})

    def write(self, row: Row) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in metrics(row).items()]
        self._add(step=step(row), summary={"value": values})

    def write_image(self, generation: int, image: Array) -> None:
        """Record an observation, [height, width] or [height, width, channels].

        Numbers that are not integers are between 0 and 1. Unless there are 1 or 3 channels, a pixel
        is the largest number of all channels.
        """
        from PIL import Image

        pixels = np.clip(image * 255.0 if image.dtype.kind == "f" else image, 0, 255).astype(
            np.uint8
        )
        pixels = pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
        pixels = pixels if pixels.shape[2] in (1, 3) else pixels.max(axis=2, keepdims=True)
        height, width, channels = pixels.shape
        file = io.BytesIO()
        Image.fromarray(pixels if channels == 3 else pixels[..., 0]).save(file, format="png")
        content = {
            "height": height,
            "width": width,
            "colorspace": channels,
            "encoded_image_string": file.getvalue(),
        }
        self._add(
            step=generation, summary={"value": [{"tag": tag("observation"), "image": content}]}
        )

    def close(self, status: EndStatus) -> None:
        del status  # event files cannot record it
        with contextlib.suppress(OSError):  # a full disk was reported by `write`
            self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def _own_folder(directory: Path, run: LoggedRun, run_id: str | None) -> Path:
    """Create and return the folder of a run: that of its earlier sessions, which has its name and
    maybe a number, and the mark of its directory, else a new one.
    """
    name = run.name
    if run_id is not None and re.fullmatch(rf"{re.escape(name)}(-[1-9]\d{{0,8}})?", run_id):
        _require_own_way(directory, run_id)
        if _has_mark(directory / run_id, run):
            return directory / run_id
    _require_own_way(directory, str(Path(name).parent))
    for number in itertools.count(1):
        folder = directory / (name if number == 1 else f"{name}-{number}")
        run_files.make_directory(folder.parent)
        with contextlib.suppress(FileExistsError), run_files.own_directory(folder) as place:
            os.mkdir(folder.name, dir_fd=place)
            break
    _mark(folder, run)
    return folder


def _mark(folder: Path, run: LoggedRun) -> None:
    with open_file(folder / MARK, "wb") as file:
        file.write(run.mark.encode())


def _has_mark(folder: Path, run: LoggedRun) -> bool:
    try:
        return read_bytes(folder / MARK) == run.mark.encode()
    except OSError:
        return False


def _require_own_way(directory: Path, name: str) -> None:
    """Raise UserError if a link of another user leads to this folder of a shared directory."""
    for folder in (Path(name), *Path(name).parents)[:-1]:  # the last one is the directory itself
        require_own_directory(directory / folder)


def _event_path(run_dir: Path) -> Path:
    """Return a name that sorts after those of earlier sessions.

    TensorBoard reads files in the order of names.
    """
    now, host = time.time_ns(), socket.gethostname()
    return run_dir / f"events.out.tfevents.{now // 10**9}.{now % 10**9:09d}.{host}.{os.getpid()}"


MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions refuse file stores without it
}
MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMS_PER_BATCH = 100  # the limit of MLflow
# Directories of a store within each other, down to the metadata of experiments, and in a run.
EXPERIMENT_LEVELS, RUN_LEVELS = 2, 16
LOCK_SECONDS = 30  # for which runs that start at the same time wait for each other
LARGEST_STORE = 1 << 20  # bytes of the metadata of all experiments
LARGEST_META = 1 << 16  # bytes of the metadata of an experiment, which have some 200, or of a tag


class MLflow:
    """MLflow: a run is one MLflow run, whose id goes into checkpoints; no server, no telemetry.

    The local file store, which `mlflow ui --backend-store-uri RUN/mlruns` opens, has one text file
    per metric, with one line "TIMESTAMP VALUE STEP" per row. MLflow cannot remove steps, so a
    resumed run truncates the files at the first generation that it computes again.
    """

    _client: Any
    _id: str

    def __init__(self, options: Mlflow) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        """Create an MLflow run, or truncate the existing one.

        A new one is also created if the one of this id is no longer in the store.
        """
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        directory = self._options.directory
        store = config_path(directory) if directory else followed(run.directory) / "mlruns"
        run_files.make_directory(store.parent)
        _require_own_store(store)
        self._client = MlflowClient(tracking_uri=store.as_uri(), registry_uri=store.as_uri())
        with _locked(store) if directory else contextlib.nullcontext():
            # runs that share a store must not create its experiment twice
            existing = self._existing(store, run, run_id) if run_id else None
            if existing is None:
                self._id = self._create(run)
                return Started(self._id, 0)
        self._id = str(run_id)
        folder = store / existing.experiment_id / self._id / "metrics"
        self._client.update_run(self._id, status="RUNNING")
        last = truncate(folder, first) - 1
        return Started(self._id, truncate(folder, last))  # the last row may be incomplete

    def write(self, row: Row) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id,
            metrics=[
                Metric(name, float(value), now, step(row)) for name, value in metrics(row).items()
            ],
        )

    def close(self, status: EndStatus) -> None:
        self._client.set_terminated(self._id, MLFLOW_STATUS[status])

    def _existing(self, store: Path, run: LoggedRun, run_id: str) -> Any:
        """Return MLflow's record of a run; None if it is not in the store, in its trash, or in a
        shared store of a run in another directory.
        """
        from mlflow.exceptions import MlflowException

        if not ID.fullmatch(run_id):
            return None
        for folder in store.glob(f"*/{run_id}"):
            require_own_entries(folder, RUN_LEVELS)
            _require_sizes(folder.rglob("*"), LARGEST_TEXT)
        try:
            found = self._client.get_run(run_id)
        except MlflowException:
            return None
        info = found.info
        if self._options.directory and found.data.tags.get(MARK) != run.mark:
            return None
        # both come from a file of the store, and name a directory
        is_named_so = info.run_id == run_id and ID.fullmatch(info.experiment_id)
        return info if info.lifecycle_stage == "active" and is_named_so else None

    def _create(self, run: LoggedRun) -> str:
        from mlflow.entities import Param as MlflowParam

        name = self._options.experiment
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )
        created = self._client.create_run(experiment_id, tags={MARK: run.mark}, run_name=run.name)
        run_id = str(created.info.run_id)
        params = []
        for key, value in run.params.items():
            allowed = re.sub(r"[^\w./ :-]", "_", key)  # the characters that MLflow allows
            params.append(
                MlflowParam(allowed, value if isinstance(value, str) else json.dumps(value))
            )
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
        return run_id


def _require_own_store(store: Path) -> None:
    """Raise an error if MLflow, which opens files without a look, would wait for a pipe in a store,
    read a file without end, or write through a link of another user.
    """
    require_own_directory(store)
    for experiments in (store, store / ".trash"):
        if not experiments.is_dir():
            continue
        require_own_entries(experiments, EXPERIMENT_LEVELS)
        for tags in experiments.glob("*/tags"):
            require_own_entries(tags, RUN_LEVELS)  # a name with a slash has a directory
            _require_sizes(tags.rglob("*"), LARGEST_META)
        total = _require_sizes(experiments.glob("*/meta.yaml"), LARGEST_META)
        if total > LARGEST_STORE:
            raise UnusualFileError(
                experiments,
                f"has experiments of {total:,} bytes, more than {LARGEST_STORE:,}, which take MLflow minutes",
            )


def _require_sizes(files: Iterable[Path], most: int) -> int:
    """Return the bytes of files; UnusualFileError if one has more than `most`."""
    total = 0
    for file in files:
        size = file.lstat().st_size if os.path.lexists(file) else 0
        if size > most:
            raise UnusualFileError(file, f"has {size:,} bytes, more than {most:,}")
        total += size
    return total


def truncate(folder: Path, first: int) -> int:
    """Remove the steps from `first` on of all metrics in a folder of the store.

    Returns:
        The step after the last one.
    """
    next_step = 0
    for path in [path for path in sorted(folder.rglob("*")) if is_regular(path)]:
        length = 0
        for line in read_bytes(path).splitlines(keepends=True):
            fields = line.split()
            # or an incomplete line
            if len(fields) != 3 or not line.endswith(b"\n") or int(fields[2]) >= first:
                break
            length, next_step = length + len(line), max(next_step, int(fields[2]) + 1)
        if length:
            run_files.truncate(path, length)
        else:
            run_files.remove(path)  # MLflow cannot read a metric without a line
    return next_step


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Hold an exclusive lock on a store, as far as that is possible: if its file system has locks,
    and nobody who may write there holds it for longer than runs do.

    The lock is on a file beside it, which strangers cannot open.
    """
    file = store.with_name(f".{store.name}.lock")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = run_files.open_descriptor(file, os.O_RDWR | os.O_CREAT, 0o660)
            stack.callback(os.close, descriptor)
            end = time.monotonic() + LOCK_SECONDS
            while not _is_locked(descriptor) and time.monotonic() < end:
                time.sleep(0.05)
        yield


def _is_locked(descriptor: int) -> bool:
    """Lock a file, and return whether it is: False if another process has a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


class WeightsAndBiases:
    """Weights & Biases, offline: a run is one W&B run, whose id goes into checkpoints.

    `wandb sync RUN/wandb/offline-run-*` uploads it. W&B cannot resume an offline run: a second
    directory of the same id replaces the first one on the server. So a resumed run writes all rows
    again into a new directory of the same id, and removes the old ones. WANDB_MODE, if set,
    replaces "offline".
    """

    _run: Any
    _directory: Path

    def __init__(self, options: Wandb) -> None:
        self._options = options

    def start(self, run: LoggedRun, run_id: str | None, first: int) -> Started:
        del first  # all rows are written again
        own = self._options.directory
        directory = self._directory = config_path(own) if own else followed(run.directory)
        run_files.make_directory(directory)
        require_own_directory(directory / "wandb")
        # telemetry, read when wandb is imported
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # its logs go there: not into $HOME, nor where others could put links
        os.environ.setdefault("WANDB_CACHE_DIR", _private_directory())
        import wandb

        if run_id is None or not ID.fullmatch(run_id) or not run_id.endswith(f"-{run.mark}"):
            run_id = f"{secrets.token_hex(4)}-{run.mark}"
        old_directories = _directories_of(run_id, directory / "wandb")
        mode: Any = os.environ.get("WANDB_MODE") or "offline"  # W&B looks at it
        with settings_of_user(WANDB):
            self._run = wandb.init(
                project=self._options.project,
                name=run.name,
                id=run_id,
                dir=str(directory),
                config=dict(run.params),
                mode=mode,
                settings=wandb.Settings(**_wandb_settings()),
            )
        for path in old_directories:
            run_files.remove_directory(path)
        return Started(str(self._run.id), 0)

    def write(self, row: Row) -> None:
        self._run.log(metrics(row), step=step(row))
        self._require_space()

    def close(self, status: EndStatus) -> None:
        # Waits until the process of W&B has written all rows; its only states are "finished" and
        # "failed".
        self._run.finish(exit_code=int(status != "finished"))
        self._require_space()

    def _require_space(self) -> None:
        """Raise OSError if the disk is full, which the process of W&B does not report."""
        if os.statvfs(self._directory).f_bavail == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))


@functools.cache
def _private_directory() -> str:
    """Return a directory of this process, which is removed at its end."""
    directory = tempfile.TemporaryDirectory("", "hpc_es_", ignore_cleanup_errors=True)
    atexit.register(directory.cleanup)
    return directory.name


def _directories_of(run_id: str, folder: Path) -> list[Path]:
    """Return the directories of a run of W&B, whose id is in the names of its files;
    the name of the directory may have a suffix.
    """
    directories = [path for path in sorted(folder.glob("offline-run-*")) if not path.is_symlink()]
    return [path for path in directories if is_regular(path / f"run-{run_id}.wandb")]


def _wandb_settings() -> JsonObject:
    """Return settings with which W&B logs only the rows.

    It logs no console, code, git, machine or packages.
    """
    off = (
        "disable_git",
        "disable_code",
        "disable_job_creation",
        "x_disable_stats",
        "x_disable_meta",
    )
    return {
        **dict.fromkeys((*off, "x_disable_machine_info", "silent"), True),
        "x_save_requirements": False,
        "console": "off",
        "reinit": "create_new",  # the calling program may have its own W&B run
    }


LOGGERS: dict[str, Callable[[Report], Logger]] = {
    "mlflow": lambda report: MLflow(report.mlflow),
    "tensorboard": lambda report: TensorBoard(report.tensorboard_directory),
    "wandb": lambda report: WeightsAndBiases(report.wandb),
}


class Loggers:
    """The loggers that `report` names, on rank 0.

    `run_ids` come from the checkpoint, by the name of the logger.
    """

    def __init__(
        self,
        report: Report,
        run: LoggedRun,
        run_ids: Mapping[str, str],
        warn: Callable[[str], object],
    ) -> None:
        self._report, self._run, self._warn = report, run, warn
        # including loggers that the config no longer names
        self.run_ids = {name: text for name, text in run_ids.items() if isinstance(text, str)}
        self._running: dict[str, Logger] = {}

    def start(self, first: int, rows: Iterable[Row]) -> None:
        """Start all loggers at generation `first`, and write earlier rows that one lacks."""
        earlier = list(rows)
        for name in self._report.all_loggers():
            with self._drop_on_error(name):
                logger = LOGGERS[name](self._report)
                started = logger.start(self._run, self.run_ids.get(name), first)
                if started.run_id is not None:
                    self.run_ids[name] = started.run_id
                self._running[name] = logger
                for row in earlier:
                    if step(row) >= started.next_generation:
                        logger.write(row)

    def write(self, row: Row, image: Array | None = None) -> None:
        """Write the row of a generation to all loggers.

        An observation is written to those that show images.
        """
        for name, logger in list(self._running.items()):
            with self._drop_on_error(name):
                logger.write(row)
                if image is not None and isinstance(logger, TensorBoard):
                    logger.write_image(step(row), image)

    def close(self, status: EndStatus) -> None:
        """Close all loggers; further calls do nothing."""
        for name, logger in list(self._running.items()):
            with self._drop_on_error(name):
                logger.close(status)
        self._running.clear()

    @contextlib.contextmanager
    def _drop_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._running.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(
                f"report.loggers: {name} has failed ({reason}); the run continues without it; "
                "metrics.jsonl has all rows, which the next start writes again"
            )
