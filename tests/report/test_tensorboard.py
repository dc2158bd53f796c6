"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_es.errors import RunError, UserError
from hpc_es.report.tensorboard import EventWriter, require, tag


def scalars(run_dir: Path, name: str) -> list[tuple[int, float]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")  # the server's own
    tensors = pytest.importorskip("tensorboard.util.tensor_util")
    accumulator: Any = reader.EventAccumulator(str(run_dir)).Reload()
    return [(event.step, float(tensors.make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(name)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("return_mean", "return/mean"),
        ("evaluation_return_mean", "evaluation/return_mean"),
        ("time_idle_worst", "time/idle_worst"),
        ("timesteps_total", "timesteps/total"),
        ("gradient_norm", "train/gradient_norm"),
        ("ranks", "train/ranks"),
    ],
)
def test_tags(key: str, expected: str) -> None:
    assert tag(key) == expected


def test_missing_package_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install tensorboard, or set report\.tensorboard to false"):
        EventWriter(tmp_path, 0)
    with pytest.raises(UserError):
        require()
    assert list(tmp_path.iterdir()) == []


def test_scalars_over_generations(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = EventWriter(tmp_path, 0)
    writer.write({"generation": 0, "return_mean": 1.5, "return_std": None, "theta_norm": math.nan})
    writer.write({"generation": 1, "return_mean": 2.5, "return_std": 0.5})
    assert scalars(tmp_path, "return/mean") == [(0, 1.5), (1, 2.5)]  # readable before it is closed
    assert scalars(tmp_path, "return/std") == [(1, 0.5)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "train/theta_norm")
    writer.close()


def test_resume_supersedes_later_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = EventWriter(tmp_path, 0)
    for generation in range(4):
        first.write({"generation": generation, "return_mean": 1.0})
    first.close()
    second = EventWriter(tmp_path, 2)  # resumed from the checkpoint of generations 0 and 1
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 1.0)]
    second.write({"generation": 2, "return_mean": 9.0})
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 1.0), (2, 9.0)]
    second.close()


def test_file_cut_by_a_kill_is_read_up_to_there(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = EventWriter(tmp_path, 0)
    first.write({"generation": 0, "return_mean": 1.0})
    first.close()
    (path,) = tmp_path.iterdir()
    path.open("ab").write(b"\x20\0\0")
    second = EventWriter(tmp_path, 1)
    second.write({"generation": 1, "return_mean": 2.0})
    assert scalars(tmp_path, "return/mean") == [(0, 1.0), (1, 2.0)]
    second.close()


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    program = (
        "import sys; from pathlib import Path; from hpc_es.report.tensorboard import EventWriter\n"
        f"EventWriter(Path({str(tmp_path)!r}), 0).write({{'generation': 0, 'return_mean': 1.0}})\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unwritable_directory_names_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(RunError, match=r"nowhere/events.* could not be written"):
        EventWriter(tmp_path / "nowhere", 0)
