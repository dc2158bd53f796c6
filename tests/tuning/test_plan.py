"""Tuning files: all errors at once, before the first trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_es.core.errors import ConfigError
from hpc_es.tuning.plan import TuningPlan, check, load
from tests.helpers.runs import TINY

GRID = "base: tiny.yaml\nspace: {algorithm.sigma: [0.1, 0.2]}\n"


def written(directory: Path, text: str, base: str = TINY) -> Path:
    (directory / "tiny.yaml").write_text(base)
    (directory / "tune.yaml").write_text(text)
    return directory / "tune.yaml"


def refused(directory: Path, text: str, base: str = TINY, fixed: tuple[str, ...] = ()) -> str:
    """The messages about errors of a tuning file or of its trials."""
    with pytest.raises(ConfigError) as error:
        check(load(written(directory, text, base), fixed), ranks=2)
    return str(error.value)


def test_grid_needs_only_base_and_space(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GRID))
    check(plan, ranks=1)
    assert plan.table() == [{"algorithm.sigma": 0.1}, {"algorithm.sigma": 0.2}]
    config = plan.config(plan.table()[1], 1)
    assert (config.algorithm.sigma, config.name, config.seed, config.repetitions) == (
        0.2,
        "trial_0001",
        1,
        1,
    )


def test_paths_of_a_trial_are_relative_to_its_base_config(tmp_path: Path) -> None:
    assert load(written(tmp_path, GRID)).config({}).directory == str(tmp_path)
    assert (
        load(written(tmp_path, GRID, TINY + "directory: /data\n")).config({}).directory == "/data"
    )


def test_fixed_value_replaces_values_of_the_space_or_is_added(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GRID), ["algorithm.sigma=0.3", "policy.hidden_dims=[4, 4]"])
    assert plan.table() == [{"algorithm.sigma": 0.3, "policy.hidden_dims": [4, 4]}]
    assert plan.config(plan.table()[0]).policy.hidden_dims == (4, 4)


def test_values_reach_the_config_exactly(tmp_path: Path) -> None:
    space = "{algorithm.sigma: {log_uniform: [1.0e-300, 1.0]}}"
    plan = load(written(tmp_path, f"base: tiny.yaml\nsearch: random\ntrials: 50\nspace: {space}\n"))
    for trial in plan.table():
        assert plan.config(trial).algorithm.sigma == trial["algorithm.sigma"]


def test_search_has_the_seed_of_the_base_config(tmp_path: Path) -> None:
    text = "base: tiny.yaml\nsearch: random\ntrials: 2\nspace: {algorithm.sigma: {uniform: [0.1, 1]}}\n"
    one, same = (load(written(tmp_path, text)).table() for _ in range(2))
    assert one == same != load(written(tmp_path, text, TINY.replace("seed: 1", "seed: 2"))).table()


def test_all_wrong_values_are_reported_at_once(tmp_path: Path) -> None:
    text = """
base: tiny.yaml
serach: grid
search: random
space:
  algorithm.sigmaa: [1]
  algorithm.population_size: [7, 8]
  algorithm.weight_decay: {uniform: [-2, 1]}
  task.max_episode_steps: []
repetitions: 0
"""
    said = refused(tmp_path, text, fixed=("foo", "algorithm.fitness_shaping=rank"))
    for expected in (
        "--fixed foo: expected key=value",
        "unknown key 'serach'; did you mean 'search'?",
        "repetitions: expected a whole number of at least 1, or null, found 0",
        "space.task.max_episode_steps: expected a list of values",
        "unknown key 'algorithm.sigmaa'; did you mean 'sigma'?",
        "algorithm.weight_decay: expected a number of at least 0, found -2.0",
        "algorithm.fitness_shaping: expected one of",
    ):
        assert expected in said
    assert len(said.splitlines()) == 7


def test_all_values_that_do_not_fit_each_other_are_reported_at_once(tmp_path: Path) -> None:
    text = """
base: tiny.yaml
search: random
sampler: cma_es
space: {algorithm.population_size: [7, 8]}
objective: {success_rate_weight: 2}
"""
    said = refused(tmp_path, text)
    for expected in (
        "trials: search: random needs to know how many",
        "sampler: is cma_es, but search is random",
        "objective: expected 'final_return', 'answer', 'best_reward' or {success_rate_weight: w} with w from 0 to 1",
        "algorithm.population_size: is 7",
    ):
        assert expected in said
    assert len(said.splitlines()) == 4


def test_value_out_of_range_in_any_trial_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path, "base: tiny.yaml\nspace: {algorithm.sigma: [0.1, 0.2, -1]}\n") == (
        "algorithm.sigma: expected a number greater than 0, found -1"
    )


def test_errors_of_combinations_are_reported(tmp_path: Path) -> None:
    space = "{algorithm.population_size: [6, 7], algorithm.mirrored_sampling: [false, true]}"
    assert "algorithm.population_size: is 7" in refused(
        tmp_path, f"base: tiny.yaml\nspace: {space}\n"
    )


def test_many_similar_errors_are_abbreviated(tmp_path: Path) -> None:
    text = "base: tiny.yaml\nsearch: random\ntrials: 50\nspace: {algorithm.sigma: {uniform: [-2, -1]}}\n"
    lines = refused(tmp_path, text).splitlines()
    assert len(lines) == 3
    assert lines[2].endswith("(and 47 more like this)")


def test_tuning_of_very_many_values_is_refused(tmp_path: Path) -> None:
    """Its report would be a table of so many cells."""
    keys = ", ".join(f"task.a{number}: [1]" for number in range(101))
    text = f"base: tiny.yaml\nsearch: random\ntrials: 10000\nspace: {{{keys}}}\n"
    with pytest.raises(ConfigError, match="10,000 trials of 101 keys, expected at most 1,000,000"):
        load(written(tmp_path, text))


def test_both_ends_of_optuna_ranges_are_validated(tmp_path: Path) -> None:
    text = "base: tiny.yaml\nsearch: optuna\ntrials: 5\nspace: {algorithm.population_size: {integer: [0, 8]}}\n"
    assert "algorithm.population_size: expected a whole number of at least 1, found 0" in refused(
        tmp_path, text
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: tyny.yaml\nspace: {seed: [1]}\n", "did you mean 'tiny.yaml'?"),
        ("space: {seed: [1]}\n", "base: expected text, not empty"),
        ("base: tiny.yaml\n", "space: expected a mapping"),
        ("base: tiny.yaml\nspace: {}\n", "space: expected a mapping, not empty"),
        (
            GRID + "search: gird\n",
            "search: expected one of 'grid', 'random', 'optuna', found 'gird'; did you mean",
        ),
        (GRID + "trials: 3\n", "trials: a grid has as many as its lists make"),
        (GRID + "sampler: cma_es\n", "sampler: is cma_es, but search is grid: take search: optuna"),
        (
            GRID + "objective: best\n",
            "objective: expected one of 'final_return', 'answer', 'best_reward', or",
        ),
        (
            GRID + "objective: best_reward\n",
            "objective: 'best_reward' is for program searches: expected 'final_",
        ),
        (
            GRID + "objective: {success_rate_weight: 1}\n",
            "stop.target_return: is null, but the objective",
        ),
    ],
)
def test_invalid_tuning_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, text)


PROGRAMS = "base: programs.yaml\nspace: {algorithm.population_size: [10, 20]}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            PROGRAMS,
            "a task without a policy has no final return: expected 'best_reward' or {success_rate_weight: w}, "
            "found 'final_return'",
        ),
        (
            PROGRAMS.replace("10", "2") + "objective: {success_rate_weight: 1}\n",
            "is 2, but the hall of fame",
        ),
    ],
)
def test_program_searches_can_maximise_success_or_reward(
    text: str, said: str, tmp_path: Path
) -> None:
    """No target_return is needed."""
    task = "task: {kind: programs, name: reverse}\nalgorithm: {kind: ga}\nstop: {episodes: 100}\n"
    (tmp_path / "programs.yaml").write_text(task)
    assert said in refused(tmp_path, text)
    for objective in ("{success_rate_weight: 1}", "best_reward"):
        check(load(written(tmp_path, PROGRAMS + f"objective: {objective}\n")), 1)


def test_grid_that_is_too_large_is_refused_at_once(tmp_path: Path) -> None:
    values = list(range(2, 50, 2))
    keys = ("algorithm.population_size", "evaluation.episodes", "evaluation.interval")
    space = f"{{{', '.join(f'{key}: {values}' for key in keys)}}}"
    assert "the grid has 13,824 trials, expected at most 10,000" in refused(
        tmp_path, f"base: tiny.yaml\nspace: {space}\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stop: {generations: 6}", "", "stop: expected a limit, because every trial must end"),
        (
            "interval: 2, episodes",
            "interval: 0, episodes",
            "evaluation.interval: is 0, but the objective",
        ),
        (
            "tests.helpers.trouble:Rough-v0",
            "CartPol-v1",
            "task.env_id: expected a registered Gymnasium id",
        ),
        (
            "table_size: 20_000",
            "table_size: 20",
            "noise.table_size: is 20, but the policy has 58 parameters",
        ),
        ("seed: 1", "seed: 1\nrepetitions: 2\nrepetition_groups: 3", "but the job has 2 ranks"),
        (
            "mpi: {",
            "mpi: {fault_tolerance: true, ",
            "mpi.fault_tolerance: is true, but tuning does not support it",
        ),
        ("seed: 1", "seed: -1", "seed: expected a whole number from 0"),
    ],
)
def test_invalid_base_config_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in TINY
    assert said in refused(tmp_path, GRID, TINY.replace(old, new))


def test_identity_has_everything_that_affects_results(tmp_path: Path) -> None:
    plans: list[TuningPlan] = [
        load(written(tmp_path, GRID)),
        load(written(tmp_path, GRID), ["algorithm.sigma=0.1"]),
        load(written(tmp_path, GRID + "repetitions: 2\n")),
        load(written(tmp_path, GRID, TINY.replace("seed: 1", "seed: 2"))),
        load(written(tmp_path, GRID, TINY.replace("generations: 6", "generations: 7"))),
    ]
    optuna = GRID + "search: optuna\ntrials: 3\n"
    plans += [
        load(written(tmp_path, optuna)),
        load(written(tmp_path, optuna + "sampler: cma_es\n")),
    ]
    identities = [repr(plan.identity()) for plan in plans]
    assert len(set(identities)) == len(plans)
    assert repr(load(written(tmp_path, "# a remark\n" + GRID)).identity()) == identities[0]


def test_base_can_be_a_config_string(tmp_path: Path) -> None:
    path = tmp_path / "tune.yaml"
    path.write_text("""
base: 'env=c(task="add"),agent=c(algorithm="ga",crossover_rate=0.5)'
space: {algorithm.mutation_rate: [0.1, 0.2]}
""")
    config = load(path).config({"algorithm.mutation_rate": 0.2})
    assert (config.task.name, config.algorithm.crossover_rate, config.algorithm.mutation_rate) == (
        "add",
        0.5,
        0.2,
    )
