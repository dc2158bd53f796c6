"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hpc_es.core.errors import UserError
from hpc_es.report.loggers import LoggedRun, Started, TensorBoard


def scalars(run_dir: Path, name: str) -> list[tuple[int, float]]:
    # the server's own
    reader = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    tensors = pytest.importorskip("tensorboard.util.tensor_util")
    accumulator: Any = reader.EventAccumulator(str(run_dir)).Reload()
    return [
        (event.step, float(tensors.make_ndarray(event.tensor_proto)))
        for event in accumulator.Tensors(name)
    ]


def started(run_dir: Path, first: int) -> TensorBoard:
    logger = TensorBoard()
    logger.start(LoggedRun(run_dir, "a", {}), None, first)
    return logger


@pytest.mark.long
def test_tensorboard_has_scalars_over_generations(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = started(tmp_path, 0)
    writer.write({"generation": 0, "return_mean": 1.5, "return_std": None, "theta_norm": math.nan})
    writer.write({"generation": 1, "return_mean": 2.5, "return_std": 0.5})
    assert scalars(tmp_path, "return/mean") == [(0, 1.5), (1, 2.5)]  # readable before it is closed
    assert scalars(tmp_path, "return/std") == [(1, 0.5)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "train/theta_norm")
    writer.close("finished")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (np.array([[[0, 255, 7], [9, 8, 7]]], np.uint8), [[[0, 255, 7], [9, 8, 7]]]),
        (np.array([[0.0, 1.0], [0.2, 3.0]], np.float32), [[0, 255], [51, 255]]),
        (np.array([[[1, 4], [30, 2]]], np.uint8), [[4, 30]]),
    ],
)
def test_tensorboard_shows_an_observation(image: Any, expected: Any, tmp_path: Path) -> None:
    """Three channels are colours, 1.0 becomes 255,
    and of two channels the image has the larger number.
    """
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = started(tmp_path, 0)
    writer.write_image(7, image)
    accumulator: Any = reader.EventAccumulator(str(tmp_path)).Reload()
    (event,) = accumulator.Images("train/observation")
    assert (event.step, event.height, event.width) == (7, *image.shape[:2])
    assert np.asarray(Image.open(io.BytesIO(event.encoded_image_string))).tolist() == expected
    writer.close("finished")


def test_tensorboard_has_the_config_as_hyperparameters(tmp_path: Path) -> None:
    """Read as the tab HPARAMS reads it: the first session of two,
    whose rows the second one replaces.
    """
    pytest.importorskip("tensorboard")
    reader = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    params = {
        "algorithm.sigma": 0.25,
        "seed": 3,
        "task.env_id": "A-v0",
        "policy.bias": True,
        "stop.seconds": None,
    }
    for _ in range(2):
        writer = TensorBoard()
        writer.start(LoggedRun(tmp_path, "a", params), None, 0)
        writer.write({"generation": 0, "return_mean": 1.0})
        writer.close("finished")
    accumulator: Any = reader.EventAccumulator(str(tmp_path)).Reload()
    content = accumulator.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert {key: getattr(value, value.WhichOneof("kind")) for key, value in hparams.items()} == {
        "algorithm.sigma": 0.25,
        "seed": 3.0,
        "task.env_id": "A-v0",
        "policy.bias": True,
        "stop.seconds": "null",
    }
    assert scalars(tmp_path, "return/mean") == [(0, 1.0)]


def test_tensorboard_steps_after_a_resume_replace_later_ones(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = started(tmp_path, 0)
    for generation in range(4):
        first.write({"generation": generation, "return_mean": 1.0})
    first.close("interrupted")
    second = started(tmp_path, 2)  # resumed from the checkpoint of generations 0 and 1
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 1.0)]
    second.write({"generation": 2, "return_mean": 9.0})
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 1.0), (2, 9.0)]
    second.close("finished")


def test_truncated_event_file_is_read_to_its_last_complete_record(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = started(tmp_path, 0)
    first.write({"generation": 0, "return_mean": 1.0})
    first.close("interrupted")
    (path,) = tmp_path.iterdir()
    path.open("ab").write(b"\x20\0\0")
    second = started(tmp_path, 1)
    second.write({"generation": 1, "return_mean": 2.0})
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 2.0)]
    second.close("finished")


def test_missing_rows_of_new_and_used_tensorboard_directories(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = LoggedRun(tmp_path, "a", {})
    assert TensorBoard().start(run, None, 3) == Started(None, 0)
    assert TensorBoard().start(run, None, 3) == Started(None, 3)


def test_runs_share_a_directory_of_event_files_with_a_folder_each(tmp_path: Path) -> None:
    """Each session of a run finds its folder by the id in the checkpoint,
    also if two runs have the same name.
    """
    pytest.importorskip("tensorboard")
    ids = []
    for value in (1.0, 2.0):
        logger = TensorBoard(str(tmp_path))
        ids.append(logger.start(LoggedRun(tmp_path / "no", "a/r", {}), None, 0).run_id)
        logger.write({"generation": 0, "return_mean": value})
        logger.close("interrupted")
    assert ids == ["a/r", "a/r-2"]
    again = TensorBoard(str(tmp_path))
    assert again.start(LoggedRun(tmp_path / "no", "a/r", {}), "a/r-2", 1) == Started("a/r-2", 1)
    again.write({"generation": 1, "return_mean": 3.0})
    again.close("finished")
    assert scalars(tmp_path / "a/r", "return/mean") == [(0, 1.0)]
    assert scalars(tmp_path / "a/r-2", "return/mean") == [(0, 2.0), (1, 3.0)]


def test_folder_of_another_run_of_this_name_is_not_written_to(tmp_path: Path) -> None:
    """A checkpoint that somebody else has written may name it."""
    pytest.importorskip("tensorboard")
    for number, (place, found) in enumerate([("one", "a"), ("two", "a-2"), ("one", "a")]):
        logger = TensorBoard(str(tmp_path / "logs"))
        assert logger.start(LoggedRun(tmp_path / place, "a", {}), "a", number).run_id == found
        logger.write({"generation": number, "return_mean": 1.0})
        logger.close("finished")
    assert scalars(tmp_path / "logs" / "a", "return/mean") == [(0, 1.0), (2, 1.0)]


def test_tensorboard_logger_does_not_import_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    program = (
        "import sys; from pathlib import Path\n"
        "from hpc_es.report.loggers import LoggedRun, TensorBoard\n"
        "logger = TensorBoard()\n"
        f"logger.start(LoggedRun(Path({str(tmp_path)!r}), 'a', {{}}), None, 0)\n"
        "logger.write({'generation': 0, 'return_mean': 1.0})\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert scalars(tmp_path, "return/mean") == [(0, 1.0)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_folder_of_a_run_that_is_a_link_of_a_stranger_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a").symlink_to(tmp_path / "private")
    os.lchown(tmp_path / "logs" / "a", 65534, 65534)
    for name, run_id in (("a", "a"), ("a/r", "a/r"), ("a/r", None)):
        logger = TensorBoard(str(tmp_path / "logs"))
        with pytest.raises(UserError, match="is a link of another user"):
            logger.start(LoggedRun(tmp_path, name, {}), run_id, 0)
    assert not [*(tmp_path / "private").iterdir()]
