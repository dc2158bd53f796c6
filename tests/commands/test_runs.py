"""hpc-es list."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.commands.runs import AGES, _copied
from hpc_es.core.errors import UserError
from hpc_es.storage.results import find_runs
from hpc_es.storage.status import STATUS, now
from tests.helpers.time_limit import time_limit
from tests.helpers.trained import run

HOUR_AGO = "2020-01-01T00:00:00Z"


def rows(directory: Path, capsys: Any) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert cli.run(["list", str(directory), "--json"]) == 0
    return {Path(row["name"]).name: row for row in json.loads(capsys.readouterr().out)}


@pytest.fixture
def several(tmp_path: Path) -> Path:
    for name in (
        "a/finished",
        "a/dead",
        "repetitions/repetition_0000",
        "repetitions/repetition_0001",
    ):
        shutil.copytree(run(), tmp_path / name)
    dead = tmp_path / "a" / "dead" / STATUS
    status = {
        **json.loads(dead.read_text()),
        "status": "running",
        "pid": 1,
        "host": "another",
        "heartbeat": HOUR_AGO,
    }
    dead.write_text(json.dumps(status))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("nothing")
    return tmp_path


def test_list_has_a_row_per_run_with_its_state(several: Path, capsys: Any) -> None:
    result = rows(several, capsys)
    assert set(result) == {"finished", "dead", "repetitions"}
    assert (result["finished"]["state"], result["finished"]["progress"]) == ("finished", 1.0)
    assert result["finished"]["best"] == pytest.approx(
        json.loads((run() / STATUS).read_text())["best_return"]
    )
    assert result["dead"]["state"] == "killed"
    assert result["dead"]["age_seconds"] > 1e6
    repetitions = result["repetitions"]
    assert (repetitions["kind"], repetitions["state"]) == ("repetitions", "finished")
    assert repetitions["progress_text"] == "2 of 2 repetitions"


def test_list_prints_rows_as_text(several: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert cli.run(["list", str(several / "a")]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "state", "progress", "best", "updated", "checkpoint"]
    assert [line.split()[1] for line in lines] == ["killed", "finished"]
    assert re.search(r"killed +\d+ %, 2 generations +\S+ +\d+ d ago +\d+ \w+ ago$", lines[0])


def checkpoints_written(run_dir: Path, *seconds_ago: float) -> None:
    """Replace the checkpoints of a run by empty ones with these times."""
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").mkdir()
    for generation, seconds in enumerate(seconds_ago):
        file = run_dir / "checkpoints" / f"checkpoint_{generation:010}.h5"
        file.touch()
        os.utime(file, times=(time.time() - seconds,) * 2)


def test_list_shows_how_old_the_newest_checkpoint_is(several: Path, capsys: Any) -> None:
    checkpoints_written(several / "a" / "dead", 9000, 7300)  # two hours
    checkpoints = several / "a" / "dead" / "checkpoints"
    (checkpoints / "best.h5").touch()  # no run is resumed from it
    # one that the run has removed since the directory was read
    (checkpoints / "checkpoint_0000000009.h5").symlink_to("gone")
    checkpoints_written(several / "a" / "finished")
    result = rows(several / "a", capsys)
    assert result["dead"]["checkpoint_age_seconds"] == pytest.approx(7300, abs=60)
    assert result["finished"]["checkpoint_age_seconds"] is None
    assert cli.run(["list", str(several / "a")]) == 0
    _, dead, finished = capsys.readouterr().out.splitlines()
    assert dead.endswith(" 2 h ago") and finished.endswith(" -")


def test_list_of_repetitions_has_the_oldest_checkpoint_of_those_that_run(
    several: Path, capsys: Any
) -> None:
    first, second = (several / "repetitions" / f"repetition_000{i}" for i in range(2))
    shutil.copytree(first, third := first.with_name("repetition_0002"))
    for one, seconds in ((first, 90_000), (second, 600), (third, 60)):
        checkpoints_written(one, seconds)
    assert rows(several, capsys)["repetitions"]["checkpoint_age_seconds"] is None  # all finished
    for one in (second, third):
        status = json.loads((one / STATUS).read_text())
        status |= {"status": "running", "host": "another", "heartbeat": now()}
        (one / STATUS).write_text(json.dumps(status))
    found = rows(several, capsys)["repetitions"]
    assert found["state"] == "running"
    assert found["checkpoint_age_seconds"] == pytest.approx(600, abs=60)


def test_list_shows_a_tuning_as_one_row(tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(run(), tmp_path / "tuning" / "trial_0000")
    from hpc_es.tuning.trials import digest

    identity = {"space": {}, "base": {}, "search": "grid", "objective": "final_return", "trials": 2}
    table = {"hash": digest(identity), "identity": identity, "trials": [{}, {}]}
    (tmp_path / "tuning" / "trials.json").write_text(json.dumps(table))
    record = {"state": "complete", "objective": 7.5, "hyperparameters": {}}
    (tmp_path / "tuning" / "trial_0000" / "trial.json").write_text(json.dumps(record))
    (row,) = rows(tmp_path, capsys).values()
    assert (row["kind"], row["state"], row["best"]) == ("tuning", "interrupted", 7.5)
    assert (row["progress"], row["progress_text"]) == (0.5, "1 of 2 trials")


def test_list_reports_that_there_are_no_runs(tmp_path: Path, capsys: Any) -> None:
    assert cli.run(["list", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "no runs in" in captured.err
    with pytest.raises(UserError, match="expected a directory, found none"):
        cli.run(["list", str(tmp_path / "gone")])


def without_ages(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {key: row | dict.fromkeys(AGES.values()) for key, row in found.items()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("status.json", b'{"state": "running", "generation": "x", "heartbeat": 3}'),
        ("status.json", b"[1, 2"),
        ("status.json", b"[" * 100_000),
        ("metrics.jsonl", b'{"generation": NaN}\n'),
        ("metrics.jsonl", b"\xff\xfe\n"),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"stop: {generations: 1.0e400}"),
        ("result.json", b'{"answer": []}'),
        ("trials.json", b"{}"),
    ],
)
def test_damaged_run_does_not_hide_the_others(
    several: Path, name: str, content: bytes, capsys: Any
) -> None:
    before = without_ages(rows(several, capsys))
    damaged = several / "damaged"
    shutil.copytree(run(), damaged)
    (damaged / name).write_bytes(content)
    after = without_ages(rows(several, capsys))
    assert {key: row for key, row in after.items() if key != "damaged"} == before
    assert len(after) == len(before) + 1


def test_run_that_may_not_be_read_is_named(
    several: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (several / "locked").mkdir()
    allowed = os.scandir

    def scandir(path: Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = rows(several, capsys)
    assert found["locked"]["state"] != "finished" and len(found) > 1


def test_terminals_get_no_control_characters(several: Path, capsys: Any) -> None:
    hostile = several / "a" / "x\x1b[31mred\x07"
    shutil.copytree(run(), hostile)
    (hostile / STATUS).write_text(json.dumps({"status": "fin\x1b]0;title\x07", "generation": 1}))
    capsys.readouterr()
    assert cli.run(["list", str(several)]) == 0
    text = capsys.readouterr().out
    assert "x\\x1b[31mred\\x07" in text and "\x1b" not in text and "\x07" not in text


def test_deep_directories_are_searched(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(300):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "status.json").write_text("{}")
    assert list(find_runs(tmp_path)) == [deep]


def test_directories_of_equal_rows_are_compared_in_seconds() -> None:
    """The place of each was looked up for each pair: 1,500 directories took over two minutes."""
    alike = {"answer": {"value": 1.0}, "theta_sha256": "a"}
    contents = {str(n): [{**alike, "theta_sha256": str(n // 2)}, alike] for n in range(3000)}
    with time_limit(60):
        copies = _copied(contents)
    assert copies == {str(n): str(n - 1) for n in range(1, 3000, 2)}
