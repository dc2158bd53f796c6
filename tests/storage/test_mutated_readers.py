"""Every reader of files returns, or raises its documented error, whatever bytes a file has."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.config.resolved import plain_data
from hpc_es.config.yaml_text import read_yaml
from hpc_es.core.array_files import load_array, load_arrays
from hpc_es.core.elites import Division, Elites
from hpc_es.core.errors import UserError
from hpc_es.core.quantities import Quantities
from hpc_es.programs.config_strings import parse_settings
from hpc_es.report.archive_plot import figure
from hpc_es.report.archive_section import archive_sections
from hpc_es.storage import checkpoint, line_logs, metrics_log, results
from hpc_es.storage.answers import read_config, read_found, read_object
from hpc_es.storage.keras_file import read_layers
from hpc_es.storage.members import read_archive, read_member, write_members
from hpc_es.storage.status import run_state, state_text
from hpc_es.tasks.functions.initial_points import points_from
from hpc_es.tuning.trials import Trial, read_table
from tests.helpers.hostile import mutated
from tests.helpers.runs import here
from tests.helpers.time_limit import time_limit

SECONDS = 20
ROUNDS = 400
CONFIG = {
    "task": {"kind": "function", "function": "statistics:fmean", "dimension": 2},
    "algorithm": {"kind": "cma_es", "population_size": 4},
    "stop": {"generations": 2},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each format."""
    root = tmp_path_factory.mktemp("files")
    (root / "config.json").write_text(json.dumps(CONFIG))
    here(root / "config.json", root / "run", ())
    np.savez_compressed(root / "arrays.npz", a=np.arange(50.0), b=np.ones((3, 2), np.float32))
    np.save(root / "array.npy", np.arange(50.0))
    (root / "string.txt").write_text("env=c(task='a',step=2),agent=c(rate=0.5,sizes=[1,2]),n=3")
    (root / "points.csv").write_text("x0,x1,value\n1,2,3\n0.5,-1,\n")
    (root / "points.json").write_text('[{"x": [1, 2], "value": 3}, {"x": [0, 1]}]')
    (root / "programs.jsonl").write_text('{"program": "+.", "reward": 1.5, "length": 2}\n' * 5)
    grid = Division(np.zeros(2), np.ones(2), 6, np.array([2, 3]), np.zeros((0, 2)))
    columns = {"return_": np.arange(2.0), "measures": np.array([[0.1, 0.1], [0.9, 0.1]])}
    made = np.arange(2), np.arange(2)
    elites = Elites(np.ones((2, 3)), *made, columns, np.array([[0, 0], [1, 0]]), grid)
    quantities = Quantities(measures={"a": (0.0, 1.0), "b": (0.0, 1.0)})
    write_members(root, "cells", elites, quantities=quantities, parameters=[{"x": 1.0}, {"x": 2.0}])
    model = {
        "class_name": "Sequential",
        "config": {"name": "m", "layers": [layer("dense", 3), layer("dense_1", 2)]},
    }
    with h5py.File(root / "model.h5", "w") as file:
        file.attrs["model_config"] = json.dumps(model)
        for name, shape in (("dense", (4, 3)), ("dense_1", (3, 2))):
            group = file.create_group(f"model_weights/{name}")
            group.attrs["weight_names"] = [b"kernel:0", b"bias:0"]
            group["kernel:0"], group["bias:0"] = np.zeros(shape), np.zeros(shape[1])
    return root


def layer(name: str, units: int) -> dict[str, Any]:
    return {
        "class_name": "Dense",
        "config": {"name": name, "units": units, "activation": "tanh", "use_bias": True},
    }


def search_options() -> Any:
    from hpc_es.config.loading import validate

    return validate(json.loads(json.dumps(CONFIG))).task


def drawn(run: Path) -> None:
    """Read and show an archive."""
    figure(read_archive(run), {}, "title")
    archive_sections([run], ["name"])
    read_member(run, "cell=0,0")
    read_member(run, "measures=0.5,0.5")


READERS: dict[str, tuple[str, Callable[[Path], object], tuple[type[Exception], ...]]] = {
    "checkpoint": ("run/checkpoints/checkpoint_0000000002.h5", checkpoint.load, (UserError,)),
    "config.yaml": (
        "run/config.yaml",
        lambda path: plain_data(path.read_text("utf-8", "replace")),
        (UserError,),
    ),
    "config of a run": ("run/config.yaml", lambda path: read_config(path.parent), ()),
    "config of the user": (
        "config.json",
        lambda path: validate(read_yaml(path)),
        (UserError,),
    ),
    "config string": (
        "string.txt",
        lambda path: parse_settings(path.read_text("utf-8", "replace")),
        (UserError,),
    ),
    "metrics.jsonl": (
        "run/metrics.jsonl",
        lambda path: metrics_log.read_metrics(path.parent),
        (UserError,),
    ),
    "last row": ("run/metrics.jsonl", lambda path: metrics_log.last_row(path.parent), ()),
    "status.json": ("run/status.json", lambda path: state_text(run_state(path.parent)), ()),
    "result.json": (
        "run/result.json",
        lambda path: (read_found(path.parent), read_object(path)),
        (),
    ),
    "results": ("run/result.json", lambda path: results.read_results(path.parent), (UserError,)),
    "programs.jsonl": (
        "programs.jsonl",
        lambda path: list(line_logs.read_programs(path.parent)),
        (UserError,),
    ),
    "trials.json": ("trials.json", lambda path: read_table(path.parent), (UserError,)),
    "trial.json": ("trial.json", lambda path: Trial(path.parent.parent, 0).record(), (UserError,)),
    "points.csv": ("points.csv", lambda path: points_from(path, search_options()), (UserError,)),
    "points.json": ("points.json", lambda path: points_from(path, search_options()), (UserError,)),
    "npz": ("arrays.npz", load_arrays, (OSError, ValueError)),
    "npy": ("array.npy", load_array, (OSError, ValueError)),
    "archive": ("archive.npz", lambda path: drawn(path.parent), (UserError,)),
    "Keras": ("model.h5", read_layers, (UserError,)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_reader_of_mutated_files(name: str, files: Path, tmp_path: Path) -> None:
    file, read, expected = READERS[name]
    source = files / file
    content = (
        source.read_bytes()
        if source.exists()
        else b'{"hash": "x", "identity": {}, "trials": [{"a": 1}]}'
    )
    copy = tmp_path / ("trial_0000" if name == "trial.json" else ".") / source.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(content)
    if source.exists():
        read(copy)
    chosen = random.Random(name)
    for number in range(ROUNDS):
        damaged = content
        for _ in range(chosen.randint(1, 3)):
            damaged = mutated(damaged, chosen)
        copy.write_bytes(damaged)
        try:
            with time_limit(SECONDS):
                read(copy)
        except expected:
            continue
        except Exception as error:
            (tmp_path / "kept").write_bytes(damaged)
            raise AssertionError(
                f"round {number}, kept in {tmp_path / 'kept'}: {error!r}"
            ) from error
