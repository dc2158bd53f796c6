"""hpc-es compare: algorithms with the seeds and limits of one config, on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import runs
from tests.helpers.harness import Finished, mpiexec, python

CONFIG = """
name: valley
task: {kind: function, function: "tests.helpers.toys:ellipsoid", dimension: 3, bounds: {low: -2, high: 3}}
algorithm: {kind: cma_es, sigma: 0.5, population_size: 8}
stop: {episodes: 160}
report: {plot_interval_seconds: 0}
"""
MODEL = "task={kind: model, model: 'tests.helpers.own_engines:Line', call: each}"


def compared(ranks: int, folder: Path, *words: str) -> Finished:
    (folder / "valley.yaml").write_text(CONFIG)
    command = ["-m", "hpc_es", "compare", str(folder / "valley.yaml"), *words]
    command += ["--output", str(folder / f"on_{ranks}")]
    return mpiexec(ranks, command) if ranks else python(command)


def test_comparison_has_the_same_bits_on_any_ranks_and_goes_on(tmp_path: Path) -> None:
    words = ("--with", "snes,random", "--seeds", "2")
    for ranks in (0, 3):
        done = compared(ranks, tmp_path, *words)
        assert done.status == 0, str(done)
        table = [line.split() for line in done.stdout.splitlines()[-4:]]
        assert table[0] == ["directory", "finished", "best", "value", "evaluations"]
        assert [Path(row[0]).name for row in table[1:]] == ["cma_es", "snes", "random"]
    for kind in ("cma_es", "snes", "random"):
        for number in range(2):
            one, other = (
                tmp_path / f"on_{ranks}/{kind}/repetition_{number:04d}" for ranks in (0, 3)
            )
            assert runs.digests(one) == runs.digests(other)
            result = json.loads((one / "result.json").read_text())
            assert result["evaluations"] == 160
    again = compared(0, tmp_path, *words, "stop.episodes=160")
    assert again.status == 0 and "generation 1" not in again.stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--with", "randon"), "did you mean 'random'?"),
        (
            ("--with", "es", "algorithm.sigma=0"),
            "algorithm.sigma: expected a number greater than 0",
        ),
        (("--with", "ga"), "algorithm.kind"),
        (("--with", "random", MODEL), "algorithm.kind: is random, but each initial vector"),
        (("--seeds", "0"), "expected a whole number of at least 1"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = compared(0, tmp_path, *words)
    assert done.status == 2 and said in done.stderr, str(done)
    assert not (tmp_path / "on_0").exists()


def test_table_has_the_paths_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "valley.yaml").write_text(CONFIG)
    command = ["-m", "hpc_es", "compare", "valley.yaml", "stop.episodes=16", "--seeds", "1"]
    done = python(command, cwd=tmp_path)
    assert done.status == 0, str(done)
    rows = [line.split()[0] for line in done.stdout.splitlines()[-2:]]
    assert rows == ["runs/valley_compared/cma_es", "runs/valley_compared/random"]
    (tmp_path / "runs" / "valley_compared").rename(tmp_path / "two words")
    whole = python(["-m", "hpc_es", "results", "two words"], cwd=tmp_path)
    assert [line.split("  ")[0] for line in whole.stdout.splitlines()[-2:]] == [
        "two words/cma_es",
        "two words/random",
    ]


def test_limit_of_generations_is_named_as_unfair(tmp_path: Path) -> None:
    done = compared(0, tmp_path, "--with", "random", "--seeds", "1", "stop={generations: 2}")
    assert done.status == 0 and "prefer stop.episodes or stop.timesteps" in done.stderr, str(done)
    fair = compared(
        0, tmp_path, "--with", "random", "--seeds", "1", "--output", str(tmp_path / "b")
    )
    assert "prefer stop.episodes" not in fair.stderr
