"""Runtime profiles on bbob-biobj, from files as the observer of COCO writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.functions import biobj, front
from benchmarks.functions.trials import continued

TEXT = """%
% index = 1650, name = bbob_f001_i02_d05__bbob_f001_i04_d05
% instance = 1, reference value = 8.333328719701140e-01
% function evaluation | indicator value | target hit
1\t3.4e+00\t3.5e+00
7\t9.8e-01\t1.0e+00
33\t7.9e-01\t7.943e-01
500\t7.8e-01\t7.943e-01
"""


def of(contender: str, hits: list[int | None]) -> biobj.Trial:
    rest: list[int | None] = [None] * (len(biobj.TARGETS) - len(hits))
    where = {"function": 1, "dimension": 5, "instance": 1, "evaluations": 500}
    return {"contender": contender, **where, "reached": hits + rest}


def test_targets_are_those_of_coco() -> None:
    assert len(biobj.TARGETS) == 58 and list(biobj.TARGETS) == sorted(biobj.TARGETS, reverse=True)
    assert biobj.TARGETS[0] == 1 and biobj.TARGETS[-1] == pytest.approx(-1e-4)


def test_a_target_is_reached_at_the_first_line_that_is_no_worse() -> None:
    # 1 and 0.794 are targets, 0.63 is the next one
    assert biobj.reached(TEXT)[:3] == [7, 33, None]
    assert biobj.reached("%\n") == [None] * 58


def test_shares_count_targets_up_to_each_budget() -> None:
    one = of("nsga2", [7, 50, 51, 150, 500])
    # 50, 150 and 500 evaluations; no more were made
    assert biobj.shares(one) == {"10 n": 2 / 58, "30 n": 4 / 58, "100 n": 5 / 58}
    table = biobj.markdown([one, of("nsga2", [7]), of("pymoo", [])])
    assert "| nsga2 | 2 | 0.026 | 0.043 | 0.052 |" in table  # 1.5, 2.5 and 3 of 58
    assert "| pymoo | 1 | 0.000 |" in table
    assert biobj.csv_text([one]).splitlines()[0].endswith(",10 n,30 n,100 n")


def test_trials_of_the_file_are_not_run_again(tmp_path: Path) -> None:
    path, seeds = tmp_path / "front.jsonl", (0, 1)
    wanted = [("nsga2", "ZDT1", seed, 200, 0) for seed in seeds]
    known = dict(zip(front.KEY, wanted[0], strict=True)) | {"all": 0.5, "population": 0.25}
    path.write_text(json.dumps(known) + "\n" + '{"contender": "nsg')
    found = continued(front.trial, wanted, front.KEY, path, jobs=1)
    assert found[0] == known and [one["seed"] for one in found] == [0, 1]
    assert [json.loads(line) for line in path.read_text().splitlines()] == found
    assert continued(front.trial, wanted, front.KEY, path, jobs=1) == found
