"""Program searches under mpiexec: identical results on any number of ranks, after kills,
and with repetitions.
"""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_es.core.keys import Keys
from hpc_es.programs import random_search
from hpc_es.programs.task import Options, build
from hpc_es.storage import results
from hpc_es.storage.checkpoint_directory import Store
from hpc_es.storage.line_logs import PROGRAMS, read_programs
from tests.helpers import runs
from tests.helpers.harness import ROOT, Finished, mpiexec, script

TASK = "task={kind: programs, name: reverse, max_code_length: 20}"
GA = (
    TASK,
    "policy=",
    "algorithm={kind: ga, population_size: 20, mutation_rate: 0.05}",
    "stop={generations: 5}",
)
RANDOM = (
    TASK,
    "policy=",
    "algorithm={kind: random_search, programs_per_generation: 70}",
    "stop={generations: 5}",
)
# One character in two of length 2 writes a number: ",." writes the 0 that is asked for.
EASY = "task={kind: programs, name: print, base: 27, fixed_string: [0], max_code_length: 2}"
# About one in 8 writes that 0 and no more: a search that goes on finds many.
MANY = (EASY.replace("length: 2", "length: 4"), "algorithm.stop_on_success=false")
VARIANTS = {
    "ga": [*GA],
    "ga, chunks of 3": [*GA, "mpi.chunk_size=3"],
    "ga, idle master": [*GA, "mpi.master_evaluates=false", "mpi.schedule=static"],
    "ga, few new": [*GA, "algorithm.mutation_rate=0.01", "algorithm.crossover_rate=0.1"],
    "ga, nothing new": [*GA, "algorithm.mutation_rate=0.0", "algorithm.crossover_rate=0.0"],
    "random": [*RANDOM],
    "random, chunks of 9": [*RANDOM, "mpi.chunk_size=9"],
    "random, solved": [*RANDOM, EASY],
    "ga, solved": [*GA, EASY],
    "ga, many": [*GA, *MANY],
    "random, many": [*RANDOM, *MANY],
}
RANKS = (2, pytest.param(3, marks=pytest.mark.long))
ALL = """
    import json, sys
    from hpc_es.api.job import parser, run_job
    from hpc_es.mpi.guard import guarded

    def body():
        for name, overrides in json.loads(sys.argv[3]).items():
            given = [sys.argv[1], "--output", f"{sys.argv[2]}/{name}", *overrides]
            assert run_job(lambda: parser().parse_intermixed_args(given)) == 0
        return 0

    guarded(body)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function from the number of ranks to the directory of all variants,
    which are run at the first call.
    """
    directory = tmp_path_factory.mktemp("searches")
    config = str(runs.tiny(directory))

    @functools.cache
    def job(ranks: int) -> Finished:
        return mpiexec(
            ranks,
            [*script(ALL), config, str(directory / str(ranks)), json.dumps(VARIANTS)],
            cwd=ROOT,
        )

    def searched(ranks: int) -> Path:
        assert job(ranks).status == 0, str(job(ranks))
        return directory / str(ranks)

    return searched


def result(run: Path) -> dict[str, Any]:
    (row,) = results.read_results(run)
    return {name: value for name, value in row.items() if name not in {"seconds", "name"}}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_results_do_not_depend_on_the_number_of_ranks(
    done: Callable[[int], Path], ranks: int, variant: str
) -> None:
    runs.assert_same(done(ranks) / variant, done(1) / variant)
    assert result(done(ranks) / variant) == result(done(1) / variant)
    assert listed(done(ranks) / variant) == listed(done(1) / variant)


@pytest.mark.parametrize("kind", ["ga", "random"])
def test_results_do_not_depend_on_chunks_and_schedule(
    done: Callable[[int], Path], kind: str
) -> None:
    """Nor does the number of executed programs: no program is executed by two ranks."""
    for variant in VARIANTS:
        if variant.startswith(kind) and variant.endswith(("of 3", "of 9", "master")):
            assert result(done(2) / variant) == result(done(1) / kind)


def test_known_programs_are_not_executed_again(done: Callable[[int], Path]) -> None:
    """Copies are not new, which ends the search; elites are never executed,
    so at most 18 of 20 programs are.
    """
    assert [row["episodes_this_generation"] for row in runs.rows(done(1) / "ga, nothing new")] == [
        20
    ]
    reason = "no new programs: there is neither mutation nor crossover"
    assert runs.status(done(2) / "ga, nothing new")["reason"] == reason
    few = [row["episodes_this_generation"] for row in runs.rows(done(1) / "ga, few new")]
    assert few[0] == 20 and all(0 < count < 18 for count in few[1:])
    assert result(done(2) / "ga, few new")["npe"] == sum(few)
    assert result(done(2) / "ga, few new")["original_npe"] == 4 * 20


@pytest.mark.parametrize("kind", ["ga", "random"])
def test_run_ends_in_the_generation_of_the_first_success(
    done: Callable[[int], Path], kind: str
) -> None:
    actual = result(done(2) / f"{kind}, solved")
    assert actual["success"] is True and actual["generations"] == 1
    assert actual["code_solution"] in {
        ",.",
        "..",
        "<.",
        ">.",
        "[.",
        "].",
        *(f".{c}" for c in "><+-[],"),
    }
    assert 1 <= actual["npe"] <= actual["episodes"]
    assert runs.status(done(2) / f"{kind}, solved")["reason"] == "a correct program"


def test_metrics_of_program_searches_count_programs_instead_of_timesteps(
    done: Callable[[int], Path],
) -> None:
    *_, last, end = (done(1) / "ga, many" / "log.txt").read_text().splitlines()
    programs = result(done(1) / "ga, many")["episodes"]
    assert (
        "generation 5 of 5  best reward 1  correct program found" in last
        and f"NPE {programs}  " in last
    )
    assert end.endswith(
        f"finished by stop.generations: 5 after 5 generations, {programs:,} programs, 0 failed programs"
    )
    assert "timesteps" not in last + end


@pytest.mark.long
def test_solved_run_ends_unless_stop_on_success_is_disabled(done: Callable[[int], Path]) -> None:
    run = done(1) / "ga, solved"
    assert "found" in described(run) and described(run)["found"]["success"] is True
    again = runs.finished(0, run, *GA, EASY)
    assert "finished by a correct program after 1 generations" in again.stdout
    runs.finished(0, run, *GA, EASY, "algorithm.stop_on_success=false")
    assert result(run)["generations"] == 5
    assert result(run)["npe"] == result(done(2) / "ga, solved")["npe"]


def described(run: Path) -> dict[str, Any]:
    """The output of hpc-es inspect."""
    from hpc_es.commands.runs import checkpoint_content
    from hpc_es.storage.checkpoint_directory import find

    return checkpoint_content(find(run), runs.newest(run))


def listed(run: Path) -> bytes:
    """programs.jsonl."""
    path = run / PROGRAMS
    return path.read_bytes() if path.exists() else b""


def test_every_correct_program_is_listed_once(done: Callable[[int], Path]) -> None:
    """70 programs in each of 5 generations, scored one by one with the reference interpreter."""
    task = build(Options(name="print", base=27, fixed_string=(0,), max_code_length=4))
    search = random_search.RandomSearch(random_search.Options(), task, None, Keys(1, 0), 16)
    drawn = [
        program for generation in range(5) for program in search.programs(generation, range(70))
    ]
    first = {
        program: npe
        for npe, program in reversed(list(enumerate(drawn, 1)))
        if task.coding.score(program).correct
    }
    expected = [
        {"generation": (npe - 1) // 70, "npe": npe, "reward": 1.0, "length": 4, "program": program}
        for program, npe in sorted(first.items(), key=lambda actual: actual[1])
    ]
    assert 10 < len(expected) < len([program for program in drawn if program in first])
    assert list(read_programs(done(2) / "random, many")) == expected
    assert described(done(2) / "random, many")["found"]["correct_programs"] == len(expected)
    assert described(done(2) / "random")["found"]["correct_programs"] == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ga", "random"])
def test_list_of_programs_is_identical_after_a_resume(
    done: Callable[[int], Path], kind: str, tmp_path: Path
) -> None:
    """Two generations after the checkpoint are computed again;
    a run without its list continues with a warning.
    """
    more, run = (*VARIANTS[f"{kind}, many"], *runs.EVERY), tmp_path / "run"
    runs.finished(0, run, *more)
    for path in Store(run / "checkpoints").paths()[-2:]:
        path.unlink()
    again = runs.finished(3, run, *more)
    assert "from generation 3" in again.stdout
    assert listed(run) == listed(done(1) / f"{kind}, many") != b""
    (run / PROGRAMS).unlink()
    again = runs.finished(0, run, *more, "stop.generations=6")
    assert (
        "programs.jsonl is missing: the correct programs found before this resume are lost"
        in again.stdout
    )


@pytest.mark.long
@pytest.mark.parametrize("search", [GA, RANDOM, (*RANDOM, *MANY)])
def test_killed_run_resumes_with_identical_results(search: tuple[str, ...], tmp_path: Path) -> None:
    many = (*search, "stop.generations=2000", "checkpoint.interval=1", "checkpoint.keep_last=1000")
    with runs.begin(2, tmp_path / "run", *many) as job:
        runs.wait_for(lambda: runs.generation(tmp_path / "run") >= 3)
        job.signal(1, signal.SIGKILL)
        assert job.wait().status != 0
    killed_at = runs.newest(tmp_path / "run").state.generation
    assert 0 < killed_at < 2000
    rest = (
        *search,
        f"stop.generations={killed_at + 3}",
        "checkpoint.interval=1",
        "checkpoint.keep_last=1000",
    )
    again = runs.finished(3, tmp_path / "run", *rest)
    assert f"from generation {killed_at}" in again.stdout
    runs.finished(1, tmp_path / "whole", *rest)
    runs.assert_same(tmp_path / "run", tmp_path / "whole")
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert listed(tmp_path / "run") == listed(tmp_path / "whole")


@pytest.mark.long
def test_metrics_interval_is_kept_after_a_resume(tmp_path: Path) -> None:
    """A search has many short generations."""
    more = (*GA, "report.metrics_interval=3", "checkpoint.interval=0")
    runs.finished(0, tmp_path / "run", *more, "stop.generations=5")
    runs.finished(0, tmp_path / "run", *more, "stop.generations=8")
    runs.finished(0, tmp_path / "whole", *GA, "stop.generations=8")
    places = [0, 3, 6, 7]
    assert [row["generation"] for row in runs.rows(tmp_path / "run")] == places
    assert runs.rows(tmp_path / "run") == [runs.rows(tmp_path / "whole")[index] for index in places]
    assert runs.table(tmp_path / "run") == [
        runs.table(tmp_path / "whole")[index] for index in places
    ]
    assert result(tmp_path / "run") == result(tmp_path / "whole")


@pytest.mark.long
def test_repetitions_cycle_through_the_tasks(tmp_path: Path) -> None:
    cycle = "task={kind: programs, cycle: [reverse, add], max_code_length: 20}"
    more = (*GA, cycle, "repetitions=3", "stop.episodes=50", "repetition_groups=2")
    runs.finished(2, tmp_path / "run", *more)
    rows = results.read_results(tmp_path / "run")
    assert [row["task"] for row in rows] == ["reverse", "add", "reverse"]
    assert [row["success"] for row in rows] == [False] * 3
    assert all(50 <= row["npe"] < 70 and row["npe"] == row["episodes"] for row in rows)
    assert results.summary(rows)["success_rate"] == 0.0
