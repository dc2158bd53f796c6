"""Files of a run that are damaged, or made by somebody else to hang or to lead elsewhere.

Commands that read runs end within seconds, without a traceback, and show the other runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import xml.dom.minidom
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

import hpc_es
from hpc_es import cli
from hpc_es.commands.report import report_page
from hpc_es.config import yaml_text
from hpc_es.config.resolved import plain_data
from hpc_es.config.schema import Mlflow, Report, Wandb
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import ConfigError
from hpc_es.report import run_sections
from hpc_es.report.loggers import LoggedRun, Loggers
from hpc_es.storage import checkpoint
from hpc_es.storage import status as status_module
from hpc_es.storage.checkpoint_directory import all_full
from hpc_es.storage.run_lock import RunLock
from tests.helpers.harness import clean_environment
from tests.helpers.hostile import mutated
from tests.helpers.time_limit import time_limit

SECONDS = 60  # a busy machine needs 20 for what takes 5
BUILT = ("es", "function", "repetitions", "tuning")
CONFIGS = {
    "es": "task: {env_id: CartPole-v1}\npolicy: {hidden_dims: [2]}\nalgorithm: {population_size: 4}",
    "function": "task: {kind: function, function: 'statistics:fmean', dimension: 2}\nalgorithm: {kind: cma_es}",
    "repetitions": "task: {kind: function, function: 'statistics:fmean', dimension: 1}\nrepetitions: 2",
}
COMMON = "\nstop: {generations: 3}\nreport: {plot_interval_seconds: 0}\n"
SECRET = "the secret of another file"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory of each kind, which finished."""
    root = tmp_path_factory.mktemp("built")
    commands = []
    for name, text in CONFIGS.items():
        (root / f"{name}.yaml").write_text(text + COMMON)
        commands.append(["train", f"{name}.yaml", "--output", name])
    (root / "tune.yaml").write_text(
        "base: function.yaml\nobjective: answer\nspace: {algorithm.sigma: [0.1, 0.2]}\n"
    )
    commands.append(["tune", "tune.yaml", "--output", "tuning"])
    for command in commands:
        program = [sys.executable, "-m", "hpc_es", *command]
        done = subprocess.run(
            program, check=False, cwd=root, env=clean_environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def runs(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with copies of the runs, and one that nobody touches."""
    for name in BUILT:
        shutil.copytree(built / name, tmp_path / "runs" / name, symlinks=True)
    shutil.copytree(built / "es", tmp_path / "runs" / "whole")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "runs"


def called(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Return status and output of a command, which may fail in one line,
    but neither hang nor raise.
    """
    with time_limit(SECONDS), pytest.raises(SystemExit) as ended:
        cli.main([*map(str, arguments)])
    said = capsys.readouterr()
    status = ended.value.code
    assert isinstance(status, int) and "Traceback" not in said.err, said.err
    assert "\x1b" not in said.out + said.err
    return status, said.out + said.err


def read_all(capsys: pytest.CaptureFixture[str], runs: Path, changed: Path) -> None:
    """Call every command that reads runs; the untouched run is shown."""
    status, listed = called(capsys, "list", runs)
    assert status == 0 and "whole" in listed
    status, _ = called(capsys, "report", runs, "-o", "page.html")
    page = Path("page.html").read_text()
    assert status == 0 and "whole" in page and SECRET not in page
    run = changed if changed.parent == runs else changed.parent
    status, said = called(capsys, "results", runs / "whole", run)
    assert "whole" in said
    if run.name == "es":  # other runs have other measures
        assert called(capsys, "plot", runs / "whole", run, "-o", "curve.png")[0] == 0
    for command in (
        ["results", run],
        ["results", run, "--csv"],
        ["inspect", run],
        ["tune-report", runs / "tuning"],
    ):
        called(capsys, *command)


def files_of(runs: Path) -> list[Path]:
    return sorted(path for name in BUILT for path in (runs / name).rglob("*") if path.is_file())


NAMES = [
    *(
        "es/config.yaml",
        "es/status.json",
        "es/result.json",
        "es/metrics.jsonl",
        "es/log.txt",
        "es/lock",
    ),
    *(
        "function/evaluations.csv",
        "es/failures.log",
        "es/x.png",
        "es/checkpoints/checkpoint_000000003.h5",
    ),
    *(
        "repetitions/config.yaml",
        "repetitions/status.json",
        "repetitions/repetition_0000/status.json",
    ),
    *("tuning/trials.json", "tuning/trial_0000/trial.json"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "kind", ["link", "pipe", "socket", "zeros", "sparse", "directory", "denied"]
)
@pytest.mark.parametrize("name", NAMES)
def test_unusual_files_of_a_run(
    kind: str, name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / name
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    match kind:
        case "link":
            file.symlink_to(runs.parent / "secret")
        case "pipe":
            os.mkfifo(file)
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(os.path.relpath(file))
        case "zeros":
            file.symlink_to("/dev/zero")
        case "sparse":
            file.touch()
            os.truncate(file, 20 << 30)
        case "directory":
            file.mkdir()
        case "denied":
            file.write_text("{}")
            file.chmod(0)
    read_all(capsys, runs, file.parent)


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["&a [" + "x, " * 9 + "]", "a: " + "[" * 50_000, "repetitions: 1000000000000\n", "\xff"]
)
def test_hostile_config(text: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)
    )
    for content in (text, bomb):
        (runs / "es" / "config.yaml").write_bytes(content.encode("latin-1"))
        read_all(capsys, runs, runs / "es")


def test_file_of_many_lists_is_unreadable(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parsed, one of the largest size would take 6 GB and minutes."""
    (runs / "es" / "status.json").write_text(f'{{"a": [{"[]," * 1_000_000}[]]}}')
    status, listed = called(capsys, "list", runs, "--json")
    assert status == 0 and "has 1,000,003 lists, more than 1,000,000" in listed
    assert str(runs / "whole") in listed


def test_run_that_takes_more_memory_than_there_is_hides_no_other(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(path: Path) -> JsonObject:
        if path.name == "es":
            raise MemoryError
        return read(path)

    read = status_module.run_state
    monkeypatch.setattr(status_module, "run_state", limited)
    status, listed = called(capsys, "list", runs)
    assert status == 0 and "whole" in listed and "MemoryError" in listed


HOSTILE = "\x1b]0;x\x07\x9b31m\u202e"


def test_texts_of_runs_are_escaped_in_pictures(
    runs: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """XML knows no control characters, and Matplotlib warns of them as they are."""
    for name in ("es", "whole"):
        file = runs / name / "config.yaml"
        data = yaml.safe_load(file.read_text())
        data |= {"name": f"{name}{HOSTILE}", "seed": 1}
        data["algorithm"]["sigma"] = len(name)
        file.write_text(json.dumps(data))
    for options in ([], ["--methods"]):
        status, said = called(capfd, "plot", runs / "es", runs / "whole", "-o", "c.svg", *options)
        assert status == 0, said
        xml.dom.minidom.parse("c.svg")
    assert not [*map(str, recwarn)]


def test_hyperparameters_reach_the_terminal_escaped(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "tuning" / "trial_0000" / "trial.json"
    data = json.loads(file.read_text())
    data["hyperparameters"]["algorithm.sigma"] = HOSTILE
    file.write_text(json.dumps(data))
    _, said = called(capsys, "tune-report", runs / "tuning")
    assert "\\x9b31m\\u202e" in said and "\x9b" not in said and "\u202e" not in said


@pytest.mark.parametrize("section", ["task", "policy", "algorithm"])
def test_section_of_another_type_hides_no_other_run(
    section: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "es" / "config.yaml"
    file.write_text(json.dumps({**yaml.safe_load(file.read_text()), section: "text"}))
    status, said = called(capsys, "plot", runs / "es", runs / "whole", "-o", "c.png")
    assert status == 0 and "unreadable" in said


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_damaged_text_files(
    seed: int, built: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(seed)
    texts = [
        path
        for path in files_of(runs)
        if path.suffix in {".json", ".jsonl", ".yaml", ".csv", ".txt", ".log"}
    ]
    for _ in range(12):
        file = chosen.choice(texts)
        file.write_bytes(mutated(file.read_bytes(), chosen))
        read_all(capsys, runs, file.parent)
        shutil.copyfile(built / file.relative_to(runs), file)


ODD_VALUES = [
    *(("task", "wrappers", value) for value in (float("inf"), 3, [[1]], {"a": 1})),
    *(("task", "episode_timeout_seconds", value) for value in ({}, "x", float("nan"))),
    *(("policy", "hidden_dims", value) for value in ([], {"a": 1}, [[1]])),
    *(("policy", "kind", None), ("policy", "activation", {}), ("policy", "bias", 10**9)),
    *(("", "directory", value) for value in ("a\0b", float("inf"), [])),
    *(("", section, value) for section in ("task", "algorithm") for value in (None, [])),
    *(
        ("provenance", name, value)
        for name in ("sources", "import_paths", "versions")
        for value in (3, [[1]], {"a": 1})
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("section", "name", "value"), ODD_VALUES)
def test_checkpoint_with_values_of_other_types(
    section: str, name: str, value: object, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "es"
    for path in (run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        if section == "provenance":
            changed = dataclasses.replace(old, provenance={**old.provenance, name: value})
        else:
            data: JsonObject = {**plain_data(old.config_text)}
            data |= {section: {**data[section], name: value}} if section else {name: value}
            changed = dataclasses.replace(old, config_text=json.dumps(data))
        checkpoint.save(path, changed)
    opened = (["eval", run, "--episodes", "1"], ["export", run, "p.npz"])
    for command in (
        *opened,
        ["trust", "--show", run],
        ["inspect", run],
        ["report", runs, "-o", "page.html"],
    ):
        status, said = called(capsys, *command)
        assert status or command not in opened
        assert not status or len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["repetition_", "trials.json", "status.json", "config.yaml"])
def test_what_somebody_puts_beside_runs_hides_none(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / name).mkdir() if name == "repetition_" else (runs / name).write_text("{}")
    status, listed = called(capsys, "list", runs)
    assert status == 0 and all(f"{runs}/{other}" in listed for other in (*BUILT, "whole"))
    assert called(capsys, "report", runs, "-o", "page.html")[0] == 0
    assert "whole" in Path("page.html").read_text()


def test_time_of_a_report_does_not_grow_with_the_square_of_its_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty directories cost nothing to somebody who hides runs behind 20,000 of them."""
    for number in range(10, 100):
        (runs / "repetitions" / f"repetition_{number:04}").mkdir()
    asked = []
    monkeypatch.setattr(run_sections, "followed", lambda path: asked.append(path) or path)
    page = report_page([runs])
    assert "repetitions/repetition_0099" in page and ">whole<" in page
    assert len(asked) == len({*asked}) > 90


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Let root be refused what is private, as all other users are, within the block."""
    library, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert library.capget(header, before) == 0
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in what is in effect
    assert library.capset(header, without) == 0
    try:
        yield
    finally:
        assert library.capset(header, before) == 0


def test_private_runs_hide_none(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that its owner keeps from others, and a repetition that is."""
    shutil.copytree(runs / "es", runs / "private")
    shutil.copytree(runs / "es", runs / "some" / "repetition_0000")
    private = (runs / "private", runs / "some" / "repetition_0000")
    for directory in private:
        directory.chmod(0)
    try:
        with without_privileges():
            status, listed = called(capsys, "list", runs)
            assert status == 0 and "whole" in listed and "Permission denied" in listed
            status, said = called(capsys, "report", runs, "-o", "page.html")
            assert status == 0, said
            page = Path("page.html").read_text()
            assert "whole" in page and "Permission denied" in page
            status, _ = called(capsys, "report", runs / "private", runs / "es", "-o", "page.html")
            assert status == 0 and "Permission denied" in Path("page.html").read_text()
            for other in (runs / "private", runs / "some"):
                for command in (["plot", "-o", "curve.png"], ["results"]):
                    status, said = called(capsys, *command[:1], runs / "whole", other, *command[1:])
                    assert status == 0 and f"unreadable: {other}" in said, said
    finally:
        for directory in private:
            directory.chmod(0o700)


@pytest.mark.parametrize("name", ["zz", "status.json", "trials.json", "repetition_0000"])
def test_link_to_what_is_private_hides_no_run(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0)
    (runs / name).symlink_to(private / "x")
    with without_privileges():
        status, listed = called(capsys, "list", runs)
        assert status == 0 and all(f"{runs}/{other}" in listed for other in (*BUILT, "whole"))
        status, said = called(capsys, "report", runs, "-o", "page.html")
        assert status == 0, said
        assert "whole" in Path("page.html").read_text()
        assert runs / "whole" in hpc_es.results(runs).paths
        # as the shell gives them for runs/*
        others = (["list"], ["report", "-o", "page.html"], ["plot", "-o", "c.png"], ["results"])
        for command, *options in others:
            status, said = called(capsys, command, runs / name, runs / "whole", *options)
            assert status == 0, said


def test_link_to_what_is_private_hides_no_checkpoint_from_trust(runs: Path, tmp_path: Path) -> None:
    before = all_full(runs / "repetitions")
    (tmp_path / "private").mkdir(mode=0)
    for number in range(20):  # some are listed before the repetitions
        (runs / "repetitions" / f"repetition_9{number:03}").symlink_to(tmp_path / "private" / "x")
    with without_privileges():
        assert all_full(runs / "repetitions") == before


def test_names_of_columns_and_texts_are_escaped(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "es" / "result.json"
    row = {**json.loads(file.read_text()), "=HYPERLINK(1)": 1, "theta_sha256": "\x1b[31m" * 9}
    file.write_text(json.dumps(row))
    (runs / "es" / "status.json").write_text(
        json.dumps({"status": "failed", "reason": "\x1b[31mred"})
    )
    for command in (["results", "--csv"], ["results"], ["inspect"]):
        status, said = called(capsys, command[0], runs / "es", *command[1:])
        assert status == 0 and not said.startswith("=") and ",=" not in said


def _logged(directory: Path, kind: str, run_id: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start a logger with an id that comes from a checkpoint; return the warnings."""
    status = SimpleNamespace(run_id=run_id, experiment_id="0", lifecycle_stage="active")
    client = MagicMock()
    client.get_run.return_value.info = status
    wandb = MagicMock()
    wandb.init.return_value.id = "new"
    for name, module in {
        "wandb": wandb,
        "mlflow": MagicMock(),
        "mlflow.tracking": MagicMock(MlflowClient=lambda **_: client),
        "mlflow.exceptions": SimpleNamespace(MlflowException=ValueError),
        "mlflow.entities": MagicMock(),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    warnings: list[str] = []
    report = Report(
        loggers=(kind,),
        wandb=Wandb(directory=str(directory)),
        mlflow=Mlflow(directory=str(directory)),
        tensorboard_directory=str(directory),
    )
    run = LoggedRun(directory, "mine", {})
    Loggers(report, run, {kind: run_id}, warnings.append).start(3, [])
    return warnings


@pytest.mark.parametrize("run_id", ["*", "[a-z]*", "a*", "../wandb/offline-run-1-abc/run-abc", ""])
def test_logger_id_of_a_checkpoint_removes_no_other_run(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_id = f"abc-{LoggedRun(tmp_path, 'mine', {}).mark}"
    own, other = (
        tmp_path / "wandb" / f"offline-run-1-{name}" / f"run-{name}.wandb"
        for name in (own_id, "abc-0123456789abcdef")
    )
    for file in (own, other):
        file.parent.mkdir(parents=True)
        file.touch()
    for name in (run_id, "abc-0123456789abcdef"):
        assert not _logged(tmp_path, "wandb", name, monkeypatch)
        assert own.exists() and other.exists()
    assert not _logged(tmp_path, "wandb", own_id, monkeypatch)
    assert other.exists() and not own.exists()  # that of this run is replaced


@pytest.mark.parametrize("run_id", ["../away", "{root}/away", "other", "mine/../../away", "mine-0"])
def test_logger_id_of_a_checkpoint_leads_to_no_other_folder(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    _logged(folder, "tensorboard", run_id.format(root=tmp_path), monkeypatch)
    assert [path.name for path in tmp_path.rglob("*") if path.is_dir()] == ["events", "mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("link", ["0", "0/abc", "0/abc/metrics", "0/abc/metrics/eval"])
def test_mlflow_store_with_a_link_of_a_stranger_is_not_cut(
    tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a file or directory of the user, four levels below the run."""
    target = tmp_path / "mine"
    (target / "abc" / "metrics").mkdir(parents=True)
    files = [target / "numbers", target / "abc" / "numbers", target / "abc" / "metrics" / "numbers"]
    for file in files:
        file.write_text("1 2 3\n4 5 6\n")
    place = tmp_path / "store" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    os.lchown(place, 12345, 12345)
    (warning,) = _logged(tmp_path / "store", "mlflow", "abc", monkeypatch)
    assert "is a link of another user (uid 12345)" in warning
    assert [file.read_text() for file in files] == ["1 2 3\n4 5 6\n"] * 3


LAUGHS = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
MERGED = f"b: &b {{{', '.join(f'k{n}: 1' for n in range(4000))}}}\nm:\n" + "- <<: *b\n" * 8000
CONFIG_TEXTS = {
    "bomb": f"a0: &a0 {{kind: float}}\n{LAUGHS}\ntask: {{parameters: {{x: *a8}}}}\n",
    "merged": MERGED,
    "syntax": "a: [1,\n b: }",
    "text": "just text",
    "list": "task: [1]\n",
    "parameters": "task: {parameters: 5}\n",
    "deep": "[" * 3000 + "]" * 3000,
    "many": "a: [" + "[]," * 600_000 + "]",
    "many lists": '{"a": [' + "[]," * 1_000_000 + "[]]}",
    "long number": f"seed: 0x{'f' * 5000}\ntask: {{}}\n",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CONFIG_TEXTS)
def test_export_of_a_checkpoint_with_a_hostile_config(
    kind: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (runs / "function" / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        checkpoint.save(path, dataclasses.replace(old, config_text=CONFIG_TEXTS[kind]))
    with time_limit(30):
        for command in (
            ["export", runs / "function", runs / "x.json"],
            ["inspect", runs / "function"],
        ):
            status, said = called(capsys, *command)
            assert status and len(said.splitlines()) == 1


def _edit_rows(run: Path, count: int = 3, **values: Callable[[int], object]) -> None:
    """Write `count` rows, in which these columns have the value of the function."""
    path = run / "metrics.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    rows = []
    for number in range(count):
        row |= {"generation": number, "timesteps_total": 100 * number, "seconds_total": number}
        rows.append({**row, **{name: value(number) for name, value in values.items()}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


ODD_ROWS: dict[str, dict[str, Callable[[int], object]]] = {
    "returns": {"return_mean": lambda n: 1e308 * (-1) ** n, "return_std": lambda n: 1e308},
    "integers": {"return_mean": lambda n: 10**400},
    "times": {"timesteps_total": lambda n: -1e308 * n, "seconds_total": lambda n: 1e308},
    "some": {"return_mean": lambda n: 1e308 if n == 1 else 1.0},
}


@pytest.mark.parametrize("kind", ODD_ROWS)
def test_numbers_that_no_picture_can_show(
    kind: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _edit_rows(runs / "es", **ODD_ROWS[kind])
    status, said = called(capsys, "plot", runs / "whole", runs / "es", "-o", "curve.png")
    assert status == 0
    status, said = called(capsys, "plot", runs / "es", "-o", "curve.png")
    assert len(said.splitlines()) == 1
    assert status == 0 or kind != "some"


@pytest.mark.parametrize("key", ["env_id", "name"])
@pytest.mark.parametrize("text", ["A" * 300_000, "a\n" * 50_000, "\x1b[31m$\\frac{"])
def test_long_titles_are_cut(
    key: str, text: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs / "es" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    (config if key == "name" else config["task"])[key] = text
    path.write_text(yaml.safe_dump(config))
    assert called(capsys, "plot", runs / "es", "-o", "curve.png")[0] == 0


def test_pictures_of_many_tasks_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = runs / "several"
    for number in range(60):
        run = several / f"repetition_{number:04}"
        shutil.copytree(runs / "es", run)
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("CartPole-v1", f"Task{number}-v1"))
        (run / "checkpoints").rename(run / "other")
    status, said = called(capsys, "plot", several, "-o", "curve.png")
    assert status and "the runs have 60 tasks" in said


@pytest.mark.long
def test_many_restarts_are_drawn_in_seconds(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit_rows(runs / "function", 20_000, restarts=lambda n: n, sigma=lambda n: n + 1.0)
    assert called(capsys, "plot", runs / "function", "-o", "curve.png")[0] == 0


def test_names_and_results_reach_the_terminal_escaped(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`called` refuses control characters; a line is none of the file's name."""
    odd = runs / "a\x1b[31m\x1b]0;title\x07b\nSECOND"
    shutil.copytree(runs / "function", odd)
    result = json.loads((odd / "result.json").read_text())
    result["answer"]["x"] = {"\x1b[31m": "\x1b]0;a\x07", "k": 1.0}
    result["seed"] = 5
    (odd / "result.json").write_text(json.dumps(result))
    shutil.copytree(runs / "function", runs / "b\x1b[31m")
    damaged = runs / "c\x1b[31m\nSECOND"
    shutil.copytree(runs / "function", damaged)
    (damaged / "result.json").write_text("[")
    tuning = (runs / "tuning").rename(runs / "t\x1b[31m")
    for command in (
        ["results", runs / "function", odd, runs / "b\x1b[31m", damaged],
        ["results", odd],
        ["results", odd, "--csv"],
        ["requeue", odd, "--status", "1", "--decide"],
        ["plot", runs / "function", odd, "-o", "curve.png"],
        ["inspect", odd],
        ["plan", "x.yaml", "--seconds", "1"],
        ["check", "x.yaml"],
        ["tune-report", tuning],
        ["export", odd, "a\x1b[31m.json"],
        ["report", odd, "-o", "a\x1b[31m.html"],
    ):
        if command[1] == "x.yaml":
            config = {**yaml.safe_load(CONFIGS["es"]), "name": "n\x1b[31m"}
            Path("x.yaml").write_text(yaml.safe_dump(config))
        _, said = called(capsys, *command)
        assert "\nSECOND" not in said and "\x1b" not in said


def test_events_are_written_into_the_run_that_is_in_use(tmp_path: Path) -> None:
    """Whoever may write above it may have exchanged it by a link, such as to a group's files."""
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    with RunLock(run):
        run.rename(tmp_path / "moved")
        run.symlink_to(other)
        loggers = Loggers(Report(loggers=("tensorboard",)), LoggedRun(run, "x", {}), {}, print)
        loggers.start(0, [])
        loggers.close("finished")
    assert not [*other.iterdir()]
    assert [*(tmp_path / "moved").glob("events.out.tfevents.*")]


def test_long_names_within_each_other_do_not_fill_the_memory_or_the_page(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the keys has the names of all sections that it is in."""
    keys = ", ".join(f"k{number}: 1" for number in range(20_000))
    name = "a" * 1_000
    nested = f"{{{name}: " * 20 + f"{{{keys}}}" + "}" * 20
    with (runs / "es" / "config.yaml").open("a") as file:
        file.write(f"\nextra: {nested}\n")
    read_all(capsys, runs, runs / "es")
    assert Path("page.html").stat().st_size < 10_000_000
    assert "more than 4,194,304 letters" in Path("page.html").read_text()


@pytest.mark.parametrize("command", [["report", "-o", "page.html"], ["results"]])
def test_config_of_a_run_is_parsed_once(
    command: list[str], runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A large one takes many seconds."""
    parsed: list[str] = []
    parse = yaml_text.parse
    monkeypatch.setattr(yaml_text, "parse", lambda text: parsed.append(text) or parse(text))
    with (runs / "es" / "config.yaml").open("a") as file:
        file.write(f"# read by {command[0]}\n")
    called(capsys, command[0], runs / "es", *command[1:])
    assert len(parsed) == 1


def test_config_that_cannot_be_copied_is_damaged() -> None:
    for levels in range(100, 1_000, 50):
        with contextlib.suppress(ConfigError):
            plain_data('{"task": ' + '{"a": ' * levels + "1" + "}" * levels + "}")
