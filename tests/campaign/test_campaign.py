"""The campaign of random failures: it detects wrong results and hanging jobs,
and a short one has no findings.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.storage.checkpoint_directory import Store
from tests.campaign import life
from tests.campaign.case import END, LATE, RIGHT, WRONG, Record
from tests.campaign.diary import Diary
from tests.campaign.life import HungError, Life
from tests.campaign.reference import Reference
from tests.campaign.settings import Setting, setting
from tests.helpers import runs
from tests.helpers.harness import ROOT, python, script, start

VALUES = {
    "task": {"kind": "function", "function": "tests.campaign.trouble:cost", "dimension": 3},
    "algorithm": {"kind": "snes", "population_size": 4},
    "noise": {"kind": "counter"},
    "report": {"plot_interval_seconds": 0},
    "stop": {"generations": 3},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Path]:
    """An undisturbed run and an equal second one."""
    directory = tmp_path_factory.mktemp("campaign")
    config = directory / "config.yaml"
    config.write_text(json.dumps(VALUES))
    done = start(
        1, ["-m", "hpc_es.main", str(config), "--output", str(directory / "run")], cwd=ROOT
    ).wait()
    assert done.status == 0, str(done)
    reference = Reference(
        directory / "references", Setting("function", {**VALUES, "name": "config"})
    )
    return reference, directory / "run"


def test_identical_run_has_no_findings(finished: tuple[Reference, Path]) -> None:
    reference, run = finished
    assert reference.strange(run) == ""
    assert reference.different(run) == []


def test_changed_bit_of_theta_is_detected(finished: tuple[Reference, Path], tmp_path: Path) -> None:
    reference, run = finished
    newest = runs.newest(run)
    theta = np.nextafter(newest.state.theta, 9)
    state = dataclasses.replace(newest.state, shared={**newest.state.shared, "theta": theta})
    Store(tmp_path / "checkpoints").save(dataclasses.replace(newest, state=state))
    assert reference.strange(tmp_path) == "the state of generation 3 in the run"


def test_hanging_job_reports_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "LIMIT_SECONDS", 1.0)
    startup = str(ROOT / "tests/campaign/startup")
    program = "import time\ndef waits_for_ever():\n    time.sleep(99)\nwaits_for_ever()"
    with (
        start(1, script(program), {"PYTHONPATH": startup}) as job,
        pytest.raises(HungError, match="in waits_for_ever"),
    ):
        Life(job).end()
    assert not job.alive()


def test_diary_continues_after_a_kill_and_only_with_its_seed(tmp_path: Path) -> None:
    kinds = [("SIGTERM", RIGHT), ("pause", WRONG), ("SIGINT", LATE), (END, RIGHT)]
    records = [Record(0, kind, verdict, 2, 1.0, "function") for kind, verdict in kinds]
    Diary(tmp_path, 7).write(0, records)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"seed": 7, "case": 1, "ev')
    result = Diary(tmp_path, 7)
    assert result.records == records and result.events == 2 and result.failures == [records[1]]
    assert "pause                    1       1       0       0" in result.table()
    result.write(1, records)
    assert Diary(tmp_path, 7).events == 4
    with pytest.raises(ValueError, match="is of --seed 7, not 8"):
        Diary(tmp_path, 8)


@pytest.mark.parametrize("seed", range(60))
def test_every_setting_is_a_valid_config(seed: int) -> None:
    validate(setting(random.Random(seed)).values)
    delayed = validate(setting(random.Random(seed), delayed=True).values)
    assert getattr(delayed.algorithm, "delay", 0) > 0 and delayed.mpi.schedule == "on_demand"


@pytest.mark.long
def test_short_campaign_has_no_findings_and_can_be_continued(tmp_path: Path) -> None:
    arguments = ["-m", "tests.campaign", "--events", "4", "--seed", "3", "--out", str(tmp_path)]
    for _ in range(2):
        done = python(arguments, timeout_seconds=300, cwd=ROOT)
        assert done.status == 0, str(done)
    message = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [case["case"] for case in message] == list(range(len(message)))
    assert sum(event["kind"] != END for case in message for event in case["events"]) >= 4
    assert not list(tmp_path.glob("case_*"))
