"""`hpc-es bandit-report`: learned agents against references."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_es
from hpc_es import cli
from hpc_es.bandits import regret
from hpc_es.bandits.setting import setting
from hpc_es.bandits.task import optimal_regret
from hpc_es.config.yaml_text import override
from hpc_es.core.errors import UserError
from hpc_es.core.keys import Keys, Purpose
from hpc_es.trained.stored import StoredPolicy, read_policy

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "task": {"kind": "bandits", "distribution": "easy", "num_trials": 20},
    "policy": {"kind": "lstm", "hidden_dims": [3]},
    "algorithm": {"population_size": 4, "sigma": 0.5},
    "noise": {"kind": "counter"},
    "mpi": {"chunk_size": 4},
    "evaluation": {"interval": 0},
    "stop": {"generations": 1},
    "report": {"plot_interval_seconds": 0},
}
_folder = tempfile.TemporaryDirectory(prefix="hpc_es_regret_")


@functools.cache
def run(*overrides: str) -> Path:
    """A finished run."""
    directory = Path(_folder.name) / f"run{len(list(Path(_folder.name).iterdir()))}"
    for _ in hpc_es.train(override(CONFIG, overrides), directory):
        pass
    return directory


def stubborn(preferred: tuple[float, float], *overrides: str) -> StoredPolicy:
    """A policy with these logits for every observation."""
    source = read_policy(run(*overrides))
    theta = np.zeros_like(source.theta)
    theta[-2:] = preferred
    return dataclasses.replace(source, shared={**source.shared, "theta": theta})


def of(result: regret.RegretReport, agent: str) -> regret.AgentScore:
    return next(score for score in result.scores if score.agent == agent)


def test_regret_of_an_agent_with_a_fixed_arm_by_hand() -> None:
    """Always arm 0 of easy arms: in episodes in which it is worse, the regret is .8 per pull."""
    result = regret.regret_report([stubborn((9, 0))], episodes=70)
    score = of(result, "tiny")
    created = setting("easy", 20)
    seeds = [Keys(0).seed31(Purpose.EVALUATION, index=i, block=2) for i in range(70)]
    drawn = created.episodes_of_seeds(seeds)
    bad = int((drawn.arms.optimal() == 1).sum())
    assert 0 < bad < 70
    np.testing.assert_allclose(score.curve, 0.8 * bad / 70 * np.arange(1, 21), rtol=1e-5)
    p = bad / 70
    assert score.regret[1] == pytest.approx(
        16 * np.sqrt(p * (1 - p) * 70 / 69) / np.sqrt(70), rel=1e-5
    )
    assert score.suboptimal_pulls == pytest.approx(20 * p)
    chances = drawn.arms.chances[:, 0, 0]
    assert score.reward == pytest.approx((drawn.uniforms < chances[:, np.newaxis]).sum() / 70)
    assert result.oracle_reward == pytest.approx(18, rel=1e-6)
    assert result.exact == pytest.approx(optimal_regret("easy", 20))


def test_actions_are_sampled_if_requested() -> None:
    """Equal logits: any arm, .4 per pull; logits log 3 and 0: arm 0 in three of four pulls."""
    even = of(regret.regret_report([stubborn((0, 0))], episodes=1000, actions="sampled"), "tiny")
    assert even.regret[0] == pytest.approx(0.4 * 20, abs=4 * 0.4 * np.sqrt(20 / 1000))
    source = stubborn((float(np.log(3)), 0), "task.distribution=deterministic")
    sampled = of(regret.regret_report([source], episodes=1000, actions="sampled"), "tiny")
    assert sampled.regret[0] == pytest.approx(5, abs=4 * np.sqrt(20 * 0.25 * 0.75 / 1000))
    assert of(regret.regret_report([source], episodes=1000), "tiny").regret == (0, 0)


def test_equal_seeds_give_equal_regret_reports() -> None:
    first, again, other = (
        regret.regret_report([read_policy(run())], episodes=30, seed=seed) for seed in (1, 1, 2)
    )
    assert regret.as_json(first) == regret.as_json(again) != regret.as_json(other)


def test_episode_does_not_depend_on_the_number_of_episodes() -> None:
    created = regret.evaluation_setting(read_policy(run()), None, None)
    few, many = (
        regret.play_learned(
            read_policy(run()), created, created.episodes_of_seeds(range(episodes)), 0, "sampled"
        ).pulls
        for episodes in (3, 70)
    )
    assert few.tobytes() == many[:3].tobytes()
    alike = regret.play_learned(
        stubborn((0, 0)), created, created.episodes_of_seeds([5] * 130), 0, "sampled"
    ).pulls
    assert len({pulls.tobytes() for pulls in alike}) == pytest.approx(130, abs=3)  # of 2**20


def test_runs_of_one_configuration_are_averaged() -> None:
    """The standard error of two runs is half of their difference."""
    paths = [run(), run("seed=1", "name=other"), run("algorithm.sigma=0.1", "name=third")]
    singles = [regret.regret_report([read_policy(path)], episodes=50).scores[0] for path in paths]
    result = regret.regret_report([read_policy(path) for path in paths], episodes=50)
    both, third = result.scores[:2]
    assert (both.runs, third.runs) == (2, 1)
    np.testing.assert_allclose(both.curve, (singles[0].curve + singles[1].curve) / 2)
    np.testing.assert_allclose(both.error, np.abs(singles[0].curve - singles[1].curve) / 2)
    assert third.regret == singles[2].regret


def test_agents_with_equal_names_are_distinguished() -> None:
    result = regret.regret_report(
        [read_policy(run()), read_policy(run("algorithm.sigma=0.2"))], episodes=5
    )
    assert [item.agent for item in result.scores if item.learned] == ["tiny", "tiny #2"]


def test_regret_can_be_measured_on_another_distribution() -> None:
    result = regret.regret_report([read_policy(run())], "hard", 5, episodes=40)
    assert (result.distribution, result.trials, result.oracle_reward) == (
        "hard",
        5,
        pytest.approx(3, rel=1e-6),
    )
    assert of(result, "bayes_optimal").regret[0] <= 5 * 0.2


def test_regret_report_as_json(capsys: Any) -> None:
    trained = str(run())
    capsys.readouterr()  # what training printed, if it was trained only now
    assert cli.run(["bandit-report", trained, "--episodes", "20", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["reports"]
    assert (result["test_distribution"], result["num_trials"], result["episodes"]) == (
        "easy",
        20,
        20,
    )
    agents = {item["agent"]: item for item in result["agents"]}
    assert next(iter(agents)) == "tiny"
    assert {
        "random",
        "ucb1",
        "ucb",
        "thompson",
        "epsilon_greedy",
        "posterior_greedy",
        "bayes_optimal",
    } < set(agents)
    assert [name for name, item in agents.items() if item["learned"]] == ["tiny"]
    for item in agents.values():
        assert len(item["cumulative_regret"]) == 20
        assert (
            item["cumulative_regret"][-1]
            == item["regret"]
            == pytest.approx(0.8 * item["suboptimal_pulls"])
        )


def test_regret_report_writes_tables_and_a_plot(tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "regret.png"
    distributions = ["--test-distribution", "easy", "--test-distribution", "restless"]
    arguments = [
        "bandit-report",
        str(run()),
        *distributions,
        "--episodes",
        "20",
        "-o",
        str(picture),
    ]
    assert cli.run(arguments) == 0
    output = capsys.readouterr()
    assert (
        "easy bandits, 20 trials, 20 held-out episodes\noracle reward 18.000\nleast possible regret 0.6"
        in output.out
    )
    assert output.out.splitlines()[-2].split() == ["regret", "of", "easy", "restless"]
    assert output.out.splitlines()[-1].split()[0] == "tiny"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["regret.png"]
    assert f"{picture} written" in output.err


def test_every_reference_has_a_colour() -> None:
    for distribution in ("easy", "restless", "gaussian", "eleven"):
        assert set(regret.references(setting(distribution, 5))) <= set(regret.REFERENCES)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--test-distribution", "eleven"], "was trained with 2 arms, eleven bandits have 11"),
        (
            ["--test-distribution", "esay"],
            "the test distribution is not valid: .*expected one of 'independent'",
        ),
        (["--episodes", "0"], "--episodes is 0: expected a whole number of at least 1"),
        (["--num-trials", "-1"], "num_trials: expected a whole number of at least 1, found -1"),
        (["-o", "x.bmp"], "the suffix is '.bmp', expected one of .png"),
        (["-o", "nowhere/x.png"], "there is no directory nowhere"),
    ],
)
def test_invalid_arguments_of_bandit_report_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        cli.run(["bandit-report", str(run()), *arguments])


def test_incomparable_runs_are_refused() -> None:
    other = run("task.num_trials=7")
    with pytest.raises(
        UserError, match=r"easy bandits of 7 trials, .* easy bandits of 20 trials: give a test"
    ):
        cli.run(["bandit-report", str(run()), str(other)])
    assert (
        cli.run(["bandit-report", str(run()), str(other), "--num-trials", "6", "--episodes", "5"])
        == 0
    )


def test_bandit_report_refuses_other_tasks() -> None:
    from tests.helpers import trained

    with pytest.raises(UserError, match="was trained on the task 'episodes', expected 'bandits'"):
        cli.run(["bandit-report", str(trained.run())])


def test_eval_plays_bandits(capsys: Any) -> None:
    assert cli.run(["eval", str(run()), "--episodes", "30", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["failed"], result["length_mean"]) == (0, 20)
    assert 0 <= result["return_mean"] <= 20
