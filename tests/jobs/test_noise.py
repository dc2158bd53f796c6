"""Noisy functions in whole jobs: the same bits on any ranks and after kills, what the run says, and
answers that are not luck.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hpc_es
from hpc_es import cli
from hpc_es.core.errors import ConfigError
from hpc_es.storage import checkpoint
from hpc_es.storage.metrics_log import read_metrics
from hpc_es.training.check import check
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec

MODEL = """
import json, os, pathlib
import numpy as np

PLAN = pathlib.Path(__file__).with_name("plan.json")


def cost(x, seed):
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if plan:
        with open(plan["calls"], "ab") as file:
            file.write(b".")
        if os.path.getsize(plan["calls"]) == plan["call"]:
            os.kill(os.getpid(), 9)
    return float((x * x).sum() + 5 * np.random.default_rng(seed).standard_normal())


def calm(x):
    return float((x * x).sum())
"""
CONFIG = """
seed: 2
task: {kind: function, function: "my_noisy_cost:cost", dimension: 6, initial: 1.0, journal: true}
algorithm: {kind: cma_es, sigma: 0.5, population_size: 9}
evaluation: {interval: 4, evaluations: 6}
checkpoint: {interval: 2}
report: {plot_interval_seconds: 0}
stop: {generations: 7}
"""
MODES = {
    "auto": (),
    "reevaluate": ("algorithm.noise_handling=reevaluate",),
    "common seeds": ("algorithm.noise_handling=reevaluate", "task.common_seeds=true"),
    "learning rate": ("algorithm.noise_handling=learning_rate",),
    "drawn": ("algorithm.noise_handling=reevaluate", "algorithm.reevaluated=drawn"),
    "auto, sep": ("algorithm.kind=sep_cma_es",),
    "learning rate, sep": ("algorithm={kind: sep_cma_es, noise_handling: learning_rate}",),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "my_noisy_cost.py").write_text(MODEL)
    return runs.tiny(tmp_path, CONFIG)


def start(config: Path, ranks: int, run: Path, *overrides: str) -> int:
    arguments = ["-m", "hpc_es.main", str(config), "--output", str(run), *overrides]
    return mpiexec(ranks, arguments, 120.0, cwd=ROOT).status


def facts(run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    return {
        "digest": runs.digest(runs.newest(run)),
        "evaluations": (run / "evaluations.csv").read_text(),
        "rows": runs.rows(run),
        **{name: result[name] for name in ("answer", "best_evaluation", "evaluations")},
    }


@pytest.mark.parametrize(
    "mode",
    [name if name == "auto" else pytest.param(name, marks=pytest.mark.long) for name in MODES],
)
def test_noisy_search_is_equal_on_any_ranks_and_after_a_kill(
    mode: str, config: Path, tmp_path: Path
) -> None:
    options = MODES[mode]
    assert start(config, 1, tmp_path / "one", *options) == 0
    expected = facts(tmp_path / "one")
    for ranks in (2, 3, 5):
        assert start(config, ranks, tmp_path / f"ranks{ranks}", *options) == 0
        assert facts(tmp_path / f"ranks{ranks}") == expected, ranks
    for call in (14, 40):  # in the probe of the first generation, and in a later one
        plan, run = config.parent / "plan.json", tmp_path / f"killed{call}"
        plan.write_text(json.dumps({"calls": f"{run}.calls", "call": call}))
        assert start(config, 3, run, *options) != 0
        assert start(config, 2, run, *options) == 0
        plan.unlink()
        assert facts(run) == expected, call


def test_run_says_what_it_found_and_counts_further_evaluations(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    runs.here(config, run, ())
    log = (run / "log.txt").read_text() if (run / "log.txt").exists() else ""
    rows = read_metrics(run)
    assert [row["reevaluations"] for row in rows[:2]] == [9, 2]
    assert rows[0]["misranking"] > 0.12
    # the centre in generations 0 and 4
    assert rows[-1]["evaluations_total"] == 7 * 9 + 9 + 6 * 2 + 2
    assert not log or log.count("noise: misranking") == 1


@pytest.mark.parametrize("mode", ["auto", "learning rate"])
def test_answer_of_a_noisy_function_is_its_centre(mode: str, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.here(config, run, MODES[mode])
    result = json.loads((run / "result.json").read_text())
    answer, best = result["answer"], result["best_evaluation"]
    centre = runs.newest(run).state.theta
    assert answer["kind"] == "mean" and answer["evaluations"] == 6
    assert answer["x"] == centre.tolist() and answer["standard_error"] > 0
    # the noise of 5 has made the best evaluation look better than any vector is
    assert best["value"] < 0 <= np.square(centre).sum() and best["value"] < answer["value"]


@pytest.mark.long
def test_results_say_that_good_luck_cannot_be_compared(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("cma_es", "snes"):
        runs.here(config, tmp_path / kind, (f"algorithm.kind={kind}",))
    note = "a best value is good luck, and cannot be compared with the mean of a centre"
    for compared, is_said in ((["cma_es", "snes"], True), (["cma_es"], False)):
        capsys.readouterr()
        cli.run(["results", *(str(tmp_path / kind) for kind in compared)])
        assert (note in capsys.readouterr().out) == is_said


@pytest.mark.long
def test_progress_shows_the_misranking_if_there_is_noise(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.here(config, run, ())
    rows = [
        line for line in (run / "log.txt").read_text().splitlines() if "value of centre" in line
    ]
    assert rows and all("  misranking 0." in line for line in rows)
    runs.here(config, tmp_path / "calm", ("task.function=my_noisy_cost:calm",))
    assert "misranking" not in (tmp_path / "calm/log.txt").read_text()


@pytest.mark.long
def test_target_is_not_reached_by_a_lucky_evaluation(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # no vector has a value below 0, but evaluations with noise of 5 do
    runs.here(config, run, ("stop.target_value=0.0", "stop.generations=5"))
    result = json.loads((run / "result.json").read_text())
    assert result["best_evaluation"]["value"] < 0 and result["generations"] == 5
    assert result["success"] == (result["answer"]["value"] <= 0)
    # a mean of 9 candidates of some 4 to 10
    runs.here(config, tmp_path / "loose", ("stop.target_value=40.0", "stop.generations=5"))
    loose = json.loads((tmp_path / "loose/result.json").read_text())
    assert loose["success"] and loose["generations"] == 1


@pytest.mark.long
def test_noiseless_function_costs_one_evaluation_more_and_is_searched_the_same(
    config: Path, tmp_path: Path
) -> None:
    names = ("task.function=my_noisy_cost:calm",)
    runs.here(config, tmp_path / "auto", names)
    runs.here(config, tmp_path / "none", (*names, "task.deterministic=true"))
    auto, none = (runs.newest(tmp_path / name) for name in ("auto", "none"))
    assert auto.counters["episodes"] == none.counters["episodes"] + 1
    for name, array in none.state.shared.items():
        assert array.tobytes() == auto.state.shared[name].tobytes(), name
    assert json.loads((tmp_path / "auto/result.json").read_text())["answer"]["kind"] == "evaluation"


@pytest.mark.long
def test_run_of_a_version_without_handling_keeps_none(config: Path, tmp_path: Path) -> None:
    run, plain = tmp_path / "old", tmp_path / "plain"
    option = ("algorithm.noise_handling=none",)
    runs.here(config, run, (*option, "stop.generations=4"))
    runs.here(config, plain, option)

    def older(data: dict[str, Any]) -> dict[str, Any]:
        del data["algorithm"]["noise_handling"]
        return data

    for path in (run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        text = yaml.safe_dump(older(yaml.safe_load(old.config_text)))
        checkpoint.save(path, replace(old, config_text=text, identity=older(dict(old.identity))))
    stored = run / "config.yaml"
    stored.write_text(yaml.safe_dump(older(yaml.safe_load(stored.read_text()))))
    runs.here(config, run, ())
    assert runs.digest(runs.newest(run)) == runs.digest(runs.newest(plain))


def noisy(x: Any, seed: int) -> float:
    return float((x * x).sum() + np.random.default_rng(seed).standard_normal())


def test_minimize_returns_the_centre_with_its_standard_error() -> None:
    best = hpc_es.minimize(
        noisy, np.ones(6), 0.5, max_evaluations=300, final_evaluations=20, seed=1
    )
    assert best.standard_error is not None and best.evaluations == 320
    exact = float(np.square(best.x).sum())
    assert abs(best.f - exact) < 4 * best.standard_error + 0.5


SEEDS: list[int] = []


def recorded(x: Any, seed: int) -> float:
    SEEDS.append(seed)
    return noisy(x, seed)


@pytest.mark.long
def test_common_seeds_are_those_of_the_generation_and_the_repeat(
    config: Path, tmp_path: Path
) -> None:
    SEEDS.clear()
    options = (
        f"task.function={__name__}:recorded",
        "task.common_seeds=true",
        "algorithm.noise_handling=reevaluate",
        "evaluation.interval=0",
        "stop.generations=3",
    )
    runs.here(config, tmp_path / "run", options)
    counts = sorted(SEEDS.count(seed) for seed in set(SEEDS))
    # the probe has 9 candidates twice, the others 9 and 2 of them again; then the centre, 6 times
    assert counts == [1] * 6 + [2, 2, 9, 9, 9, 9]


def test_reevaluation_of_a_deterministic_function_is_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SystemExit), match="deterministic is true"):
        runs.here(
            config,
            tmp_path / "run",
            ("task.deterministic=true", "algorithm.noise_handling=reevaluate"),
        )


@pytest.mark.parametrize(
    ("options", "ranks", "line"),
    [
        # 9 + 2 jobs in 20 places; 8 + 2 jobs in 10
        (
            ("algorithm.noise_handling=reevaluate", "algorithm.reevaluated=drawn"),
            10,
            "algorithm.population_size: 8 would for 100%",
        ),
        # twice 9 evaluations on 9 ranks
        (("task.repeats={at_least: 2, at_most: 4}",), 9, ""),
        # 27 evaluations in 40 places, or 36 of 12 candidates
        (
            ("task.repeats={at_least: 3, at_most: 3}",),
            20,
            "busy for 68% of the time; algorithm.population_size: 12 would for 90%",
        ),
    ],
)
def test_check_proposes_a_population_that_fits_with_reevaluations(
    options: tuple[str, ...],
    ranks: int,
    line: str,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hpc_es.config.loading import load

    check(load(config, options), ranks)
    printed = capsys.readouterr().out
    assert line in printed if line else "if evaluations are noisy, 9" not in printed
    assert "  noise: " in printed
