"""Shards of results, their summary and the comparison of directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_es import cli
from hpc_es.core.errors import UserError
from hpc_es.storage import results
from hpc_es.storage.results import Shard, statistics


def row(
    repetition: int, final: float | None = 1.0, success: bool | None = None, timesteps: int = 10
) -> dict[str, Any]:
    values = {
        "final_return": final,
        "best_return": final,
        "success": success,
        "timesteps": timesteps,
        "seconds": 1.0,
        "budget": {},
    }
    return {"repetition": repetition, "repetitions": 5, **values}


def test_shards_are_read_in_the_order_of_repetitions(tmp_path: Path) -> None:
    results.append(tmp_path, Shard(1, 2), row(3))
    results.append(tmp_path, Shard(0, 2), row(0))
    results.append(tmp_path, Shard(0, 2), row(1))
    assert [result["repetition"] for result in results.read_results(tmp_path)] == [0, 1, 3]
    assert results.summary(results.read_results(tmp_path))["missing"] == [2, 4]


def test_several_directories_are_compared_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The median of 1, 2 and 4 is 2, and the quartiles are halfway between neighbours."""
    a, b = tmp_path / "a", tmp_path / "b"
    for number, final in enumerate([1.0, 2.0, 4.0]):
        results.append(a, Shard(0, 1), row(number, final))
    results.append(b, Shard(0, 1), row(0, 5.0))
    assert cli.run(["results", str(a), str(b)]) == 0
    width = len(str(a))
    assert capsys.readouterr().out.splitlines() == [
        "Numbers are medians over repetitions (lower to upper quartile).",
        f"{'directory':{width}}  finished  final return  best return   timesteps",
        f"{a}  3 of 5    2 (1.5 to 3)  2 (1.5 to 3)  10",
        f"{b}  1 of 5    5             5             10",
    ]
    cli.run(["results", str(a), str(b), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert list(result) == [str(a), str(b)] and result[str(b)]["rows"][0]["final_return"] == 5.0
    cli.run(["results", str(a), str(b), "--csv"])
    assert [line.partition(",")[0] for line in capsys.readouterr().out.split()] == [
        "directory",
        *[str(a)] * 3,
        str(b),
    ]


def test_incomplete_line_counts_as_missing_and_is_replaced(tmp_path: Path) -> None:
    results.append(tmp_path, Shard(0, 1), row(0))
    path = tmp_path / "results" / "0-of-1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"repetition": 1, "fin')
    assert [result["repetition"] for result in results.read_results(tmp_path)] == [0]
    results.append(tmp_path, Shard(0, 1), row(2))
    assert [result["repetition"] for result in results.read_results(tmp_path)] == [0, 2]


def test_damaged_line_is_reported(tmp_path: Path) -> None:
    results.append(tmp_path, Shard(0, 1), row(0))
    path = tmp_path / "results" / "0-of-1.jsonl"
    path.write_bytes(path.read_bytes() + b"no json\n")
    with pytest.raises(UserError, match=r"0-of-1\.jsonl, line 2"):
        results.read_results(tmp_path)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("budget", ...),  # missing
        ("budget", 3),
        ("budget", {"episodes": "many"}),
        ("seconds", "long"),
        ("success", []),
        ("repetitions", ...),
        ("repetition", -1),
        ("repetition", 2**63),
    ],
)
def test_row_of_other_types_is_a_damaged_line(entry: str, value: Any, tmp_path: Path) -> None:
    """It may come from somebody else: resuming compares the budgets of these rows."""
    damaged = {**row(0), entry: value}
    results.append(tmp_path, Shard(0, 1), {k: v for k, v in damaged.items() if v is not ...})
    with pytest.raises(UserError, match=rf"0-of-1\.jsonl, line 1: expected a result.*{entry}"):
        results.read_results(tmp_path)


def test_results_with_ever_other_entries_are_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column for each entry of each row would be their number squared."""
    for number in range(100):
        entries = {f"{number} {column}": 0 for column in range(600)}
        results.append(tmp_path, Shard(0, 1), {**row(number), **entries})
    with pytest.raises(UserError, match=r"the 100 results have 60,0\d\d different entries"):
        cli.run(["results", str(tmp_path), "--csv"])


def test_run_with_other_numbers_is_no_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody may write other numbers beside the digest of another run's bits."""
    for name, final in (("a", 1.0), ("b", 5.0), ("c", 1.0)):
        results.append(tmp_path / name, Shard(0, 1), {**row(0, final), "theta_sha256": "0" * 64})
    assert cli.run(["results", *(str(tmp_path / name) for name in "abc")]) == 0
    out = capsys.readouterr().out
    assert f"left out: {tmp_path / 'c'}, a copy of {tmp_path / 'a'}" in out
    assert str(tmp_path / "b") in out and out.count("left out") == 1


def test_one_repetition_in_two_shards_counts_once(tmp_path: Path) -> None:
    results.append(tmp_path, Shard(0, 1), row(0))
    results.append(tmp_path, Shard(0, 2), row(0))
    assert results.summary(results.read_results(tmp_path))["finished"] == 1


def test_summary_by_hand() -> None:
    rows = [
        row(n, final, n < 3, 100 * (n + 1)) for n, final in enumerate([1.0, 2.0, 3.0, 4.0, 10.0])
    ]
    summary = results.summary(rows)
    assert summary["success_rate"] == 0.6
    expected = {
        "mean": 4.0,
        "median": 3.0,
        "quartile_1": 2.0,
        "quartile_3": 4.0,
        "interquartile_range": 2.0,
    }
    assert summary["final_return"] == {**expected, "min": 1.0, "max": 10.0}
    # of 100, 200, 300: the successful ones
    assert summary["timesteps_to_target"]["median"] == 200.0


def test_results_without_a_target_have_no_success() -> None:
    summary = results.summary([row(0), row(1, None)])
    assert summary["success_rate"] is None
    assert summary["final_return"]["mean"] == 1.0


def test_twelve_items_are_split_over_five_shards() -> None:
    """The formula of the original implementation lost trial 3 and ran trial 6 twice."""
    shares = [list(Shard(i, 5).share(12)) for i in range(5)]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize(("total", "count"), [(0, 3), (1, 4), (7, 7), (60, 7), (144, 13)])
def test_shards_have_every_item_once(total: int, count: int) -> None:
    shares = [list(Shard(i, count).share(total)) for i in range(count)]
    assert [item for share in shares for item in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shards_are_parsed() -> None:
    assert Shard.parse("2/3") == Shard(2, 3)


@pytest.mark.parametrize("text", ["3/3", "1", "-1/3", "a/b", "", "1/0", "1/2/3", "1.5/3"])
def test_invalid_shards_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected i/n"):
        Shard.parse(text)


def array(task: int, first: int, last: int, count: int) -> dict[str, str]:
    values = {"ID": task, "MIN": first, "MAX": last, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("environ", "shard"),
    [
        ({}, None),
        ({"SLURM_ARRAY_TASK_ID": ""}, None),
        (array(0, 0, 3, 4), Shard(0, 4)),
        (array(4, 1, 4, 4), Shard(3, 4)),
        (array(20, 10, 30, 3), Shard(1, 3)),
        (array(3, 3, 3, 1), Shard(0, 1)),  # a task submitted again alone does what is missing
    ],
)
def test_shard_follows_from_the_array_task(environ: dict[str, str], shard: Shard | None) -> None:
    assert Shard.of_array(environ) == shard


def test_array_with_gaps_is_refused() -> None:
    with pytest.raises(UserError, match="not evenly spaced"):
        Shard.of_array(array(2, 1, 7, 3))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_ARRAY_TASK_ID": "1"}, "found '1', '', '', '': pass --shard"),
        ({**array(1, 0, 1, 2), "SLURM_ARRAY_TASK_ID": "(1)"}, r"found '\(1\)'"),
        ({**array(1, 0, 1, 2), "SLURM_ARRAY_TASK_ID": "1.5"}, "found '1.5'"),
        ({**array(1, 0, 1, 2), "SLURM_ARRAY_TASK_COUNT": "x"}, "'0', '1', 'x'"),
        (array(-1, 0, 1, 2), "found '-1'"),
        # would train repetitions that do not exist
        (array(7, 0, 1, 2), "found '7', '0', '1', '2'"),
        (array(0, 0, 1, 0), "'0', '1', '0'"),
        (array(0, 0, 1, 5), "'0', '1', '5'"),
    ],
)
def test_variables_that_are_no_array_are_refused(environ: dict[str, str], found: str) -> None:
    with pytest.raises(UserError, match=found):
        Shard.of_array(environ)


def test_a_config_that_names_any_number_of_repetitions_lists_some() -> None:
    summary = results.summary([row(1)], 10**12)
    assert summary["missing"] == [0, *range(2, 1001)]
    assert f"999, 1000 and {10**12 - 1001:,} more" in results.summary_text(summary)


def test_statistics_of_numbers_whose_sum_is_infinite() -> None:
    found = statistics([1.7e308, 1.7e308, 1.0])
    assert found is not None and found["mean"] == pytest.approx(1.7e308 / 3 * 2)
