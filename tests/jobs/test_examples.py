"""The examples run from another directory with the package installed: on 1 and 3 ranks,
killed and resumed.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from hpc_es.storage.checkpoint_directory import Store
from tests.helpers.harness import ROOT, Finished, mpiexec, python, start
from tests.helpers.runs import digest, newest, wait_for

EXAMPLES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/*/*.yaml"))
QUICK = "examples/own_task/masts.yaml"  # the one of make test
SHORT = (
    "checkpoint.interval=1",
    "report.plot_interval_seconds=0",
    "evaluation.interval=2",
    "stop.target_value=",
)
# an option of each
OWN = {"noise": "size", "policy": "frequencies", "algorithm": "population_size", "task": "masts"}
# of models, whose evaluations take long
SMALL = ("algorithm.population_size=8", "task.jobs_per_call=4")
SMALLER = {
    "digits": (*SMALL, "task.model_kwargs.images=16"),
    "bytes": (
        *SMALL,
        "task.model_kwargs.units=8",
        "task.model_kwargs.length=16",
        "task.model_kwargs.held_out=2",
    ),
    "expressions": (
        "algorithm.population_size=8",
        "task.model_kwargs={width: 8, layers: 1, heads: 2, prompts: 2, samples: 2, held_out: 2}",
    ),
    "sorting": (*SMALL, "task.model_kwargs.count=8", "task.model_kwargs.held_out=16"),
}
TRANSFORMER = "examples/torch_transformer/transformer_model.py"
SORTING = "examples/sorting_jax/sorting_model.py"
LIMIT_SECONDS = 120.0


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Environment variables by which Python finds the package in a
    directory without the rest of the repository.
    """
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "hpc_es", source / "hpc_es", ignore=shutil.ignore_patterns("__pycache__")
    )
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=300
    )
    return {"PYTHONPATH": str(target)}


def arguments(example: str, run: str, generations: int) -> list[str]:
    overrides = [*SHORT, *SMALLER.get(Path(example).stem, ()), f"stop.generations={generations}"]
    return ["-m", "hpc_es.main", str(ROOT / example), "--output", run, *overrides]


def well(done: Finished) -> Finished:
    assert done.status == 0 and not done.timed_out, str(done)
    return done


@pytest.mark.long
def test_installed_package_is_imported(installed: Mapping[str, str], tmp_path: Path) -> None:
    said = well(
        python(["-c", "import hpc_es; print(hpc_es.__file__)"], env=installed, cwd=tmp_path)
    ).stdout
    assert said.startswith(installed["PYTHONPATH"])


@pytest.mark.parametrize(
    "example",
    [
        # those of PyTorch are skipped unless they are tested in their own virtual environment
        pytest.param(item, marks=[] if item == QUICK or "/torch_" in item else [pytest.mark.long])
        for item in EXAMPLES
    ],
)
def test_example_is_identical_on_three_ranks_killed_and_resumed(
    example: str, installed: Mapping[str, str], tmp_path: Path
) -> None:
    if "/torch_" in example:
        pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
    if "_jax/" in example:
        pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    if "/torch_transformer/" in example:
        small = ["--steps", "2", "--batch", "4", "--width", "8", "--layers", "1", "--heads", "2"]
        pretraining = [str(ROOT / TRANSFORMER), "pretrain", "base.safetensors", *small]
        well(python(pretraining, LIMIT_SECONDS, installed, tmp_path))
    if "digits" in example:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed here: make test-jax")
    if "sorting" in example:  # steps, units, layers and questions of the pre-training
        well(
            python(
                [str(ROOT / SORTING), "pretrained.npz", "2", "8", "1", "4"],
                LIMIT_SECONDS,
                installed,
                tmp_path,
            )
        )
    run = tmp_path / "three"
    with start(3, arguments(example, "three", 10_000), installed, tmp_path) as job:
        # of generation 0, 1, 2 at least
        wait_for(lambda: len(Store(run / "checkpoints").paths()) > 2, LIMIT_SECONDS)
        job.kill()
    end = newest(run).state.generation + 2
    well(mpiexec(3, arguments(example, "three", end), LIMIT_SECONDS, installed, tmp_path))
    well(python(arguments(example, "one", end), LIMIT_SECONDS, installed, tmp_path))
    assert newest(run).state.generation == end
    assert digest(newest(run)) == digest(newest(tmp_path / "one"))


def test_answer_is_right_in_one_call_exactly_if_greedy_decoding_returns_it() -> None:
    """The reward of the sorting example relies on this."""
    pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
    model = runpy.run_path(str(ROOT / SORTING))
    parameters, questions = model["initial"](1, units=8, layers=2), model["batch"](0, 64)
    decoded = np.asarray(model["decoded"](parameters, questions))
    assert len(np.unique(decoded, axis=0)) > 30  # the random network has different answers
    others = decoded.copy()
    others[np.arange(64), np.arange(64) % 8] = (others[np.arange(64), np.arange(64) % 8] + 1) % 10
    for answers, expected in ((decoded, True), (others, False)):
        logits = np.asarray(
            model["answer_logits"](model["half"](parameters), questions, answers), np.float32
        )
        assert ((logits.argmax(axis=-1) == answers).all(axis=1) == expected).all()


@pytest.mark.long
@pytest.mark.parametrize("section", OWN)
def test_options_of_an_example_are_listed_and_suggested(
    section: str, installed: Mapping[str, str], tmp_path: Path
) -> None:
    (example,) = [str(ROOT / name) for name in EXAMPLES if f"/own_{section}/" in name]
    own = OWN[section]
    listed = well(
        python(["-m", "hpc_es", "options", "--config", example], env=installed, cwd=tmp_path)
    )
    assert f"{section}.{own}" in listed.stdout
    checked = python(
        ["-m", "hpc_es", "check", example, f"{section}.{own}x=1"], env=installed, cwd=tmp_path
    )
    assert checked.status == 2 and f"did you mean '{own}'?" in checked.stderr, str(checked)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [0, 2])
def test_losses_of_an_example_are_reported(
    ranks: int, installed: Mapping[str, str], tmp_path: Path
) -> None:
    program = [str(ROOT / "examples/losses/watch.py"), "watched"]
    done = well(
        mpiexec(ranks, program, env=installed, cwd=tmp_path)
        if ranks
        else python(program, env=installed, cwd=tmp_path)
    )
    assert len(re.findall(r"^loss +-?[\d.]+  best reward", done.stdout, re.MULTILINE)) == 20, str(
        done
    )
    assert done.stdout.count("the next batch, before it is learned from: {'policy_loss'") == 1
    kept = sorted((tmp_path / "watched").glob("theta_*.npy"))
    assert [item.name for item in kept] == ["theta_000010.npy", "theta_000020.npy"]
    assert (np.load(kept[1]) == newest(tmp_path / "watched").state.theta).all()
