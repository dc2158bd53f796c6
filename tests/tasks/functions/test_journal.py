"""The journal of evaluations that a restarted generation reads."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hpc_es.core.errors import Failure, RunError
from hpc_es.tasks.functions.journal import FOLDER, EvaluationJournal, Mode, remove_finished
from hpc_es.tasks.functions.results import EvaluationResult

X = np.array([0.1, -0.0, 1 / 3])
SLOW = [
    EvaluationResult(1 / 3, None, 2.0),
    EvaluationResult(math.nan, Failure("late", "time"), 2.0),
]


def opened(run: Path, mode: Mode = True, identity: str = "") -> EvaluationJournal:
    journal = EvaluationJournal(mode, identity)
    journal.open(run, lambda make: make())
    return journal


def files(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("*"))


def test_restart_reads_finished_evaluations(tmp_path: Path) -> None:
    keys = [opened(tmp_path).key(str(job), X, 5) for job in (0, 1)]
    opened(tmp_path).add(7, lambda: keys, SLOW)
    after = opened(tmp_path)
    (good, bad) = after.recorded(7, lambda: keys) or []
    assert good.value == 1 / 3 and good.failure is None
    assert math.isnan(bad.value) and bad.failure == Failure("late", "time")
    assert (
        after.recorded(8, lambda: keys) is None
        and after.recorded(7, lambda: [*keys, "another"]) is None
    )


@pytest.mark.parametrize("writes", [True, False])
def test_failures_are_evaluated_again_if_they_end_the_run(writes: bool, tmp_path: Path) -> None:
    """Otherwise the same command would always fail, even after a repair."""
    writer, reader = EvaluationJournal(True, "", writes), EvaluationJournal(True, "", False)
    for journal in (writer, reader):
        journal.open(tmp_path, lambda make: make())
        journal.add(7, lambda: ["good", "bad"], SLOW) if journal is writer else None
    assert reader.recorded(7, lambda: ["good"]) == [EvaluationResult(1 / 3)]
    assert reader.recorded(7, lambda: ["bad"]) is None


def test_constraint_values_are_recorded_exactly(tmp_path: Path) -> None:
    result = EvaluationResult(1 / 3, None, 2.0, (0.1, -1 / 7))
    opened(tmp_path).add(7, lambda: ["a"], [result])
    assert opened(tmp_path).recorded(7, lambda: ["a"]) == [result._replace(seconds=0.0)]


def test_entries_of_another_job_vector_seed_or_source_are_ignored(tmp_path: Path) -> None:
    key = opened(tmp_path).key("0", X, 5)
    other = np.array([0.1, 0.0, 1 / 3])  # 0.0 == -0.0, but they are stored differently
    journal = opened(tmp_path)
    keys = [
        journal.key("1", X, 5),
        journal.key("0", other, 5),
        journal.key("0", X, 6),
        EvaluationJournal(True, "b").key("0", X, 5),
    ]
    assert key == journal.key("0", X.copy(), 5) and len({key, *keys}) == 5


@pytest.mark.parametrize(
    ("mode", "seconds", "written"), [("auto", 0.02, 1), ("auto", 0.001, 0), (True, 0, 1)]
)
def test_cheap_evaluations_are_not_recorded(
    mode: Mode, seconds: float, written: int, tmp_path: Path
) -> None:
    opened(tmp_path, mode).add(0, lambda: ["a"], [EvaluationResult(1.0, None, seconds)])
    assert len(files(tmp_path)) == written


def test_disabled_journal_neither_writes_nor_reads(tmp_path: Path) -> None:
    opened(tmp_path).add(0, lambda: ["a"], SLOW[:1])
    journal = opened(tmp_path, False)
    journal.add(0, lambda: ["b"], SLOW[:1])
    assert (
        journal.recorded(0, lambda: ["a"]) is None
        and len(files(tmp_path)[0].read_bytes().splitlines()) == 1
    )


def test_incomplete_or_damaged_lines_are_ignored(tmp_path: Path) -> None:
    opened(tmp_path).add(0, lambda: ["a", "b"], SLOW)
    (file,) = files(tmp_path)
    file.write_bytes(b'{"generation": 0}\nnonsense\n' + file.read_bytes()[:-5])
    after = opened(tmp_path)
    assert after.recorded(0, lambda: ["a"]) is not None and after.recorded(0, lambda: ["b"]) is None


def test_incomplete_line_does_not_affect_the_next_file(tmp_path: Path) -> None:
    for key in ("a", "b"):
        opened(tmp_path).add(0, lambda key=key: [key], SLOW[:1])
        (file,) = files(tmp_path) if key == "a" else files(tmp_path)[1:]
        file.rename(file.with_name(f"generation_000000000_{key}.jsonl"))
    first = files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-5])
    after = opened(tmp_path)
    assert after.recorded(0, lambda: ["a"]) is None and after.recorded(0, lambda: ["b"]) is not None


def test_files_of_generations_in_a_checkpoint_are_removed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for generation in (3, 4, 5):
        journal.add(generation, lambda: ["a"], SLOW[:1])
    remove_finished(tmp_path, 5)
    assert [path.name[:20] for path in files(tmp_path)] == ["generation_000000005"]


def test_full_disk_is_reported(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("")
    with pytest.raises(RunError, match="could not be written"):
        opened(tmp_path).add(0, lambda: ["a"], SLOW[:1])


ENTRY = '{"generation": 3, "key": "a", "value": null, "failure": null'


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000 + "]" * 100_000,
        ENTRY.replace("null", '"0x1p99999"', 1) + "}",
        ENTRY.replace("3", "1e999") + "}",
        ENTRY.replace("3", "9" * 5000) + "}",
        '{"generation": 3, "closed": [1e999]}',
        '{"generation": -1e999, "closed": [1]}',
        ENTRY + ', "failure": "x", "kind": [1]}',
        ENTRY + ', "failure": 5}',
        ENTRY + ', "numbers": ["0x1p99999"]}',
        ENTRY + ', "numbers": [null]}',
        "[]",
        "5",
    ],
)
def test_hostile_lines_are_ignored(line: str, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "generation_000000003_x_1.jsonl").write_text(f"{line}\n{ENTRY}}}\n")
    journal = opened(tmp_path)
    assert journal.recorded(3, lambda: ["a"]) and not journal.closed
