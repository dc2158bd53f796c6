"""Invalid input ends a command with status 2 and one message that names the remedy,
before training starts.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpc_es
from hpc_es import cli
from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.policies.networks import keras_models
from hpc_es.training.build import build_task
from hpc_es.training.check import check
from tests.helpers import runs
from tests.helpers.harness import Finished, mpiexec, python

TOY = "tests.helpers.toys:Strange-v0"
MISTAKES = {
    "unknown key": (["algorithm.sigm=0.1"], "unknown key 'algorithm.sigm'; did you mean 'sigma'?"),
    "wrong type": (
        ["algorithm.sigma=large"],
        "algorithm.sigma: expected a number greater than 0, found 'large'",
    ),
    "out of range": (
        ["algorithm.optimizer.beta1=1.5"],
        "algorithm.optimizer.beta1: expected a number",
    ),
    "sigma 0": (
        ["algorithm.sigma=0"],
        "algorithm.sigma: expected a number greater than 0, found 0",
    ),
    "weight decay < 0": (
        ["algorithm.weight_decay=-1"],
        "algorithm.weight_decay: expected a number of at least 0, found -1",
    ),
    "odd population": (
        ["algorithm.population_size=7"],
        "mirrored sampling needs an even number (try 8)",
    ),
    "unknown kind": (["algorithm.kind=ess"], "algorithm.kind: expected"),
    "unknown environment": (["task.env_id=CartPool-v1"], "did you mean 'CartPole-v1'?"),
    "unknown module": (["task.env_id=nowhere:Env-v0"], "module 'nowhere' cannot be imported"),
    "unknown wrapper": (
        ["task.wrappers=['gymnasium.wrappers:FlattenObservations']"],
        "task.wrappers[0]: expected 'module:Class', found 'gymnasium.wrappers:FlattenObservations'",
    ),
    "images": (
        [f"task.env_id={TOY}", "task.env_kwargs.observations=image"],
        "takes flat observations",
    ),
    "numbers": (
        [f"task.env_id={TOY}", "task.env_kwargs.observations=discrete"],
        "FlattenObservation' to task.wrappers",
    ),
    "keywords": (
        ["task.env_kwargs.colour=red"],
        "task.env_kwargs: tests.helpers.trouble:Rough-v0 does not take these keywords",
    ),
    "bins": (
        ["task.env_id=CartPole-v1", "policy.action_bins=5"],
        "policy.action_bins: is 5, but the actions are Discrete",
    ),
    "noise on Discrete actions": (
        ["task.env_id=CartPole-v1", "policy.action_noise_std=0.1"],
        "policy.action_noise_std: is 0.1, but noise cannot be added to actions Discrete(2)",
    ),
    "export without a policy": (
        [
            "task={kind: programs, name: add}",
            "policy=",
            "algorithm={kind: ga}",
            "report.export_interval=1",
        ],
        "report.export_interval: is 1, but the task programs has no policy to export",
    ),
    "small table": (
        ["noise.table_size=57"],
        "noise.table_size: is 57, but the policy has 58 parameters: expected at least 58",
    ),
    "unknown program": (
        ["task={kind: programs, name: ad}", "policy=", "algorithm={kind: ga}"],
        "task.name: expected one of",
    ),
    "policy for programs": (
        ["task={kind: programs, name: add}", "algorithm={kind: ga}"],
        "policy: the task 'programs' has no policy",
    ),
    "search of episodes": (
        ["algorithm={kind: random_search}"],
        "task.kind: is 'episodes', but the algorithm 'random_search' searches programs",
    ),
    "es for programs": (
        ["task={kind: programs, name: add}"],
        "task.kind: is 'programs', but the algorithm 'es' searches vectors",
    ),
    "no equals sign": (["algorithm.sigma"], "algorithm.sigma"),
    "bad YAML": (["policy.hidden_dims=[1,"], "policy.hidden_dims"),
    "no stop": (
        ["evaluation.interval=0", "stop.target_return=1"],
        "stop.target_return: needs evaluations",
    ),
}


VALLEY: dict[str, Any] = {
    "kind": "function",
    "function": "tests.helpers.toys:valley",
    "dimension": 3,
}
UNIT = {"low": 0, "high": 1}
IN_A_SEARCH = {  # task, options of cma_es, what --check says
    "one sample": (
        VALLEY,
        {"population_size": 1},
        "algorithm.population_size: expected a whole number of at least 2",
    ),
    "sigma 0": (
        VALLEY,
        {"sigma": 0},
        "algorithm.sigma: expected a number greater than 0, or null, found 0",
    ),
    "a kind of restarts": (
        VALLEY,
        {"restarts": "bipo"},
        "algorithm.restarts: expected one of 'none', 'ipop', 'bipop'",
    ),
    "no growth": (
        VALLEY,
        {"restarts": "ipop", "population_factor": 1},
        "expected a number greater than 1, found 1",
    ),
    "an unknown stop": (
        VALLEY,
        {"stops": {"tolfunn": 1}},
        "'algorithm.stops.tolfunn'; did you mean 'tolfun'?",
    ),
    "a tolerance below 0": (
        VALLEY,
        {"stops": {"tolx": -1}},
        "algorithm.stops.tolx: expected a number of at least 0",
    ),
    "an option of es": (
        VALLEY,
        {"beta1": 0.5},
        "did you mean 'algorithm.optimizer.beta1' of kind actor_critic, es",
    ),
    "bounds the wrong way": (
        {**VALLEY, "bounds": {"low": 1, "high": 0}},
        {},
        "task.bounds.high: is 0 in coordinate 0: expected more than low, which is 1",
    ),
    "a begin outside": (
        {**VALLEY, "bounds": UNIT, "initial": [0.5, 0.5, 3.0]},
        {},
        "task.initial: is 3 in coordinate 2: expected a number from 0 to 1",
    ),
    "many numbers": (
        {**VALLEY, "dimension": 2001},
        {},
        "algorithm.kind: is 'cma_es', whose covariance has the square of 2,001 parameters: expected at most 2,000; try",
    ),
    "many parameters": (
        {"env_id": "CartPole-v1"},
        {},
        "has the square of 4,610 parameters: expected at most 2,000",
    ),
    "programs": (
        {"kind": "programs", "name": "add"},
        {},
        "task.kind: is 'programs', but the algorithm 'cma_es' searches vectors",
    ),
}


@pytest.mark.parametrize("mistake", IN_A_SEARCH)
def test_check_reports_invalid_cma_es_options(mistake: str) -> None:
    """4 inputs, two layers of 64 and 2 outputs: 320 + 4160 + 130 parameters."""
    task, options, said = IN_A_SEARCH[mistake]
    policy = {"policy": {"hidden_dims": [64, 64]}} if "env_id" in task else {}
    with pytest.raises(ConfigError) as caught:
        check(validate({"task": task, "algorithm": {"kind": "cma_es", **options}, **policy}))
    assert said in str(caught.value)


def refused(done: Finished, *texts: str) -> None:
    """Assert status 2 and each text once on stderr, without a traceback or time-out."""
    assert done.status == 2 and not done.timed_out, str(done)
    assert "Traceback" not in done.stderr + done.stdout, str(done)
    for text in texts:
        assert done.stderr.count(text) == 1, f"{text!r} in {done}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_config_is_reported_and_writes_no_files(mistake: str, tmp_path: Path) -> None:
    arguments, text = MISTAKES[mistake]
    refused(runs.train(0, tmp_path / "run", *arguments), text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mistake", ["noise on Discrete actions", "export without a policy"])
def test_check_reports_errors_that_would_occur_after_the_start(
    mistake: str, tmp_path: Path
) -> None:
    arguments, text = MISTAKES[mistake]
    refused(runs.train(0, tmp_path / "run", "--check", *arguments), text)


@pytest.mark.parametrize(
    ("missing", "said"), [("mlp", "kind 'mlp' cannot"), ("tensorflow", "is not installed")]
)
def test_impossible_export_is_reported(missing: str, said: str, monkeypatch: Any) -> None:
    real = importlib.util.find_spec
    if missing == "mlp":
        monkeypatch.delitem(keras_models.MODELS, "mlp")
    else:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if missing in name else real(name)
        )
    data = {"task": {"env_id": "CartPole-v1"}, "report": {"export_interval": 5}}
    with pytest.raises(ConfigError, match=f"report.export_interval: is 5, .*{said}"):
        build_task(validate(data))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "expected a YAML file, found no such file; did you mean 'tiny.yaml'?"),
        ("", "expected a mapping"),
        ("[1, 2]", "expected a mapping"),
        ("seed: 1\nseed: 2", "the key 'seed' stands twice"),
        ("seed: [1", "line 1"),
        ("seed: 1", "task.env_id: expected text"),
    ],
)
def test_files_that_are_not_configs_are_refused(
    text: str | None, said: str, tmp_path: Path
) -> None:
    runs.tiny(tmp_path)
    path = tmp_path / "tinny.yaml"
    if text is not None:
        path.write_text(text)
    refused(python(["-m", "hpc_es.main", str(path), "--output", str(tmp_path / "run")]), said)


# a config whose values are right one by one, and its expected errors
ALL_AT_ONCE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "every stage": (
        {
            "task": {
                "env_id": "CartPole-v1",
                "stepping": "native",
                "wrappers": ["tests.helpers.toys:Plus"],
            },
            "algorithm": {"population_size": 7},
            "stop": {"target_value": 1.0},
        },
        (
            "algorithm.population_size: is 7",
            "stop.target_value: the task 'episodes' has no objective value",
            "task.stepping: is native",
        ),
    ),
    "options of a policy": (
        {
            "task": {"env_id": "CartPole-v1"},
            "policy": {"action_bins": 5},
        },
        ("policy.action_bins: is 5",),
    ),
    "a package, an odd population": (
        {"task": {"env_id": "HalfCheetah-v5"}, "algorithm": {"population_size": 7}},
        (
            "algorithm.population_size: is 7",
            "task.env_id: HalfCheetah-v5 needs mujoco, which is not installed",
        ),
    ),
    "a package, actions": (
        {"task": {"env_id": "Pendulum-v1"}, "algorithm": {"kind": "actor_critic"}},
        (
            "algorithm.kind: actor_critic needs tensorflow, which is not installed",
            "task: Pendulum-v1 has Box actions",
        ),
    ),
    "parts of an objective": (
        {
            "task": {
                "kind": "function",
                "function": "nowhere:cost",
                "dimension": 3,
                "bounds": {"low": [0, 0], "high": 1},
                "initial": "start.npy",
            },
            "algorithm": {"kind": "cma_es"},
        },
        (
            "task.bounds.low: expected 3 numbers",
            "task.function: there is no module 'nowhere'",
            "task.initial: expected a file of numbers",
        ),
    ),
    "kinds": (
        {
            "task": {"kind": "programs", "name": "add"},
            "policy": {"kind": "mlp"},
            "algorithm": {"kind": "cma_es"},
        },
        (
            "task.kind: is 'programs'",
            "policy: the task 'programs' has no policy",
        ),
    ),
    "environment, wrappers, output, what it begins with": (
        {
            "output": "/proc/run",
            "task": {
                "env_id": "CartPool-v1",
                "wrappers": ["nowhere:Wrapper", "tests.helpers.toys:Minus"],
            },
            "policy": {"init_from": "runs/nowhere"},
        },
        (
            "task.wrappers[0]: expected 'module:Class'",
            "task.wrappers[1]: expected 'module:Class'",
            "task.env_id: expected a registered Gymnasium id",
            "output: /proc/run cannot be created",
            "policy.init_from: runs/nowhere: expected a checkpoint",
        ),
    ),
}
# an error whose default would lead to another one
NO_FURTHER: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt key": (
        {
            "task": {
                "env_id": TOY,
                "env_kwargs": {"observations": "dict"},
                "wrapers": ["tests.helpers.toys:Plus"],
            }
        },
        "unknown key 'task.wrapers'; did you mean 'wrappers'?",
    ),
    "a mapping": (
        {"task": {"env_id": "tests.helpers.toys:Slow-v0", "env_kwargs": [1]}},
        "task.env_kwargs: expected a mapping",
    ),
    "no environment": (
        {"task": {"env_id": 5}, "policy": {"action_bins": 5}},
        "task.env_id: expected text, found 5",
    ),
    "bounds, where the search begins anywhere in them": (
        {
            "task": {**VALLEY, "initial": "random", "bounds": {"low": "a", "high": 1}},
            "algorithm": {"kind": "cma_es"},
        },
        "task.bounds.low: expected a number",
    ),
    "the kind": (
        {"task": {"kind": "episode", "env_id": "CartPole-v1"}},
        "task.kind: expected one of",
    ),
}


def lines_of_check(config: Mapping[str, Any], tmp_path: Path) -> list[str]:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    with pytest.raises(ConfigError) as caught:
        cli.run(["check", str(tmp_path / "config.yaml")])
    return str(caught.value).splitlines()


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables that hide MuJoCo and TensorFlow."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorflow" else real(name)
    )
    monkeypatch.setitem(sys.modules, "mujoco", None)
    # by tests before
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("config", ALL_AT_ONCE)
def test_errors_of_all_stages_are_reported_at_once(
    config: str, tmp_path: Path, without_packages: None
) -> None:
    """Configs that a user corrected one error at a time, in five rounds."""
    data, texts = ALL_AT_ONCE[config]
    lines = lines_of_check(data, tmp_path)
    for text in texts:
        assert sum(line.startswith(text) for line in lines) == 1, f"{text!r} in {lines}"
    assert len(lines) == len(texts), lines


@pytest.mark.parametrize("config", NO_FURTHER)
def test_consequential_errors_are_not_reported(config: str, tmp_path: Path) -> None:
    data, text = NO_FURTHER[config]
    (line,) = lines_of_check(data, tmp_path)
    assert line.startswith(text)


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_start_reports_the_errors_of_check(arguments: list[str], tmp_path: Path) -> None:
    data, texts = ALL_AT_ONCE["every stage"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    refused(
        python(["-m", "hpc_es.main", *arguments, str(tmp_path / "config.yaml")], cwd=tmp_path),
        *texts,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


# What check tries.

LINEAR = """
from hpc_es.config.options import option, options
from hpc_es.core.population import Layout

@options
class Options:
    kind: str = option("this file", "linear")
    action: str = option("what the policy does", "")

class Linear:
    action_noise_std, rows_are_independent = 0.0, True

    def __init__(self, options, spaces):
        self.layout, self.action = Layout({"weights": spaces.observations.shape}), options.action

    def initial(self, rng):
        import numpy as np
        return np.zeros(self.layout.size, np.float32)

    def bind(self, parameters, normaliser):
        return self

    def act(self, observations):
        import numpy as np
        return eval(self.action, {"np": np, "observations": observations, "rows": len(observations)})

    def keep(self, rows):
        pass

    def restart(self, row):
        pass

class Kind:
    Options, build = Options, Linear
"""
ACTS = {  # an expression, and its message: the actions of CartPole are 0 and 1
    "np.zeros(rows, np.int64)": "",
    "observations @ np.zeros((3, 2))": "linear:Kind fails when it acts on an observation of CartPole-v1: ValueError: ",
    "np.zeros((rows, 1), np.int64)": "expected actions int64[2] from 0 to 1 of linear:Kind for 2 observations of "
    "CartPole-v1, found int64[2, 1]",
    "np.zeros(rows)": "found float64[2]",
    "[0] * rows": "found list",
    "np.full(rows, 2)": "found [2, 2]",
}


@pytest.mark.parametrize("action", ACTS)
def test_check_calls_a_custom_policy_once(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linear.py").write_text(LINEAR)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "linear", raising=False)
    config = {
        "task": {"env_id": "CartPole-v1"},
        "policy": {"kind": "linear:Kind", "action": action},
    }
    if not ACTS[action]:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        assert cli.run(["check", str(tmp_path / "config.yaml")]) == 0
        return
    (line,) = lines_of_check(config, tmp_path)
    assert line.startswith("policy: ") and ACTS[action] in line, line


@pytest.mark.parametrize(
    ("function", "said"), [("failing", "ValueError: no licence"), ("nan", "the value is nan")]
)
def test_check_calls_a_function_once_unless_disabled(
    function: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other errors that need no valid call are also reported."""
    task = {**VALLEY, "function": f"tests.jobs.test_bad_input:{function}"}
    data = {"task": task, "algorithm": {"kind": "cma_es"}, "output": "/proc/run"}
    lines = lines_of_check(data, tmp_path)
    assert len(lines) == 2 and lines[0].startswith("output: /proc/run cannot be created")
    assert lines[1].startswith(
        f"task.function: the call of tests.jobs.test_bad_input:{function} with the first vector fails"
    )
    assert said in lines[1] and "--no-call leaves this call out" in lines[1]
    arguments = [
        "check",
        str(tmp_path / "config.yaml"),
        "--no-call",
        "--output",
        str(tmp_path / "run"),
    ]
    capsys.readouterr()
    assert cli.run(arguments) == 0 and capsys.readouterr().err == ""
    assert not (tmp_path / "run").exists()


TYPED = {
    "layers": {"integer": True, "low": 1, "high": 8},
    "solver": {"choices": ["cg", "gmres"]},
}
# options of the task, and the expected errors
PARAMETERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "parameters": (
        {
            "parameters": {
                "empty": {"choices": []},
                "between": {"integer": True, "low": 0.2, "high": 0.8},
                "zero": {"low": -1, "high": 1, "scale": "log"},
                "job": {"boolean": True},
            },
            "constraints": ["a", "a"],
        },
        (
            "task.parameters.empty.choices: expected at least 2 choices, found 0",
            "task.parameters.between.low: is 0.2, but integer is true: expected a whole number",
            "task.parameters.between.high: is 0.8, but integer is true: expected a whole number",
            "task.parameters.zero.low: is -1, but scale is log: expected more than 0",
            "task.parameters.job: is also a column of evaluations.csv",
            "task.constraints: has a, which is also another constraint or a parameter",
        ),
    ),
    "more constraints": (
        {"parameters": TYPED, "constraints": 2},
        (
            "task.function: the call of tests.jobs.test_bad_input:one_constraint with the first vector fails",
        ),
    ),
    "no constraints": (
        {"parameters": TYPED},
        (
            "task.function: the call of tests.jobs.test_bad_input:one_constraint with the first vector fails",
        ),
    ),
    "points in CSV": (
        {"parameters": TYPED, "constraints": 1, "initial_points": "p.csv"},
        (
            'task.initial_points: p.csv: line 2: layers is "x": expected a whole number from 1 to 8; line 3: solver is',
        ),
    ),
    "points in JSON": (
        {"parameters": TYPED, "constraints": 1, "initial_points": "p.json"},
        (
            'task.initial_points: p.json: point 0: layers is "3": expected a whole number from 1 to 8; point 1: ',
        ),
    ),
}


def one_constraint(**parameters: Any) -> dict[str, Any]:
    return {"value": 1.0, "constraints": [0.0]}


@pytest.mark.parametrize("mistake", PARAMETERS)
def test_check_reports_wrong_parameters_constraints_and_points(
    mistake: str, tmp_path: Path
) -> None:
    task, texts = PARAMETERS[mistake]
    (tmp_path / "p.csv").write_text("layers,solver\nx,cg\n3,jacobi\n")
    (tmp_path / "p.json").write_text(
        '[{"layers": "3", "solver": "cg"}, {"layers": 3, "solver": 1}]'
    )
    function = {"kind": "function", "function": "tests.jobs.test_bad_input:one_constraint", **task}
    lines = lines_of_check({"task": function, "algorithm": {"kind": "cma_es"}}, tmp_path)
    assert len(lines) == len(texts) and all(
        any(line.startswith(text) for line in lines) for text in texts
    ), lines


def test_check_reports_a_name_that_stands_twice(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "task: {kind: function, parameters: {a: {low: 0, high: 1}, a: {low: 0, high: 2}}}\n"
    )
    with pytest.raises(ConfigError, match="the key 'a' stands twice"):
        cli.run(["check", str(config)])


def failing(x: Any) -> float:
    raise ValueError("no licence")


def nan(x: Any) -> float:
    return float("nan")


def test_init_from_must_match_the_network(tmp_path: Path) -> None:
    """4 observations, 8 hidden units, 2 actions: 40 + 18 parameters."""
    runs.here(runs.tiny(tmp_path), tmp_path / "run", ["stop.generations=1"])
    data = {
        "task": {"env_id": "tests.helpers.trouble:Rough-v0"},
        "policy": {"hidden_dims": [4], "init_from": str(tmp_path / "run")},
    }
    (line,) = lines_of_check(data, tmp_path)
    assert line.startswith("policy.init_from: expected 30 parameters, found 58 in ")
    # A run that has its own checkpoint does not read the source, and continues without it.
    data["policy"]["init_from"] = str(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    assert cli.run(["check", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "run")]) == 0


def test_checkpoints_too_large_for_the_disk_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`es` with Adam stores theta, two moments and the best vector, each 10^6 float64:
    4 * 8 MB, in 3 + 1 + 1 files.
    """
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8)
    )
    task = {**VALLEY, "dimension": 1_000_000}
    output = str(tmp_path / "run")
    data = {
        "task": task,
        "algorithm": {"kind": "es"},
        "noise": {"kind": "counter"},
        "output": output,
    }
    (line,) = lines_of_check(data, tmp_path)
    assert (
        line.startswith(f"output: {output}: expected at least 160 MB for 5 checkpoints")
        and "found 100 MB" in line
    )


TUNING = {
    "base": "config.yaml",
    "space": {"algorithm.sigma": [0.1, 0.2], "algorithm.population_size": [8]},
}


@pytest.fixture
def tuning(tmp_path: Path) -> Path:
    base = {"task": {"env_id": "CartPole-v1"}, "stop": {"generations": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(TUNING))
    return tmp_path / "tune.yaml"


def test_check_validates_a_tuning_file(tuning: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", str(tuning)]) == 0
    said = "tuning is valid: 2 trials around config.yaml, of algorithm.population_size, algorithm.sigma\n"
    assert capsys.readouterr().out == said
    with pytest.raises(ConfigError, match="population_size: is 7"):
        cli.run(["check", str(tuning), "algorithm.population_size=7"])


@pytest.mark.parametrize("program", ["hpc_es plan", "hpc_es.main"])
def test_commands_for_configs_explain_a_tuning_file(program: str, tuning: Path) -> None:
    done = python(["-m", *program.split(), str(tuning)])
    refused(done, f"{tuning} is a tuning file", f"hpc-es tune {tuning} runs it")


def test_several_wrong_values_are_reported_at_once(tmp_path: Path) -> None:
    names = ["sigma 0", "weight decay < 0", "unknown key", "out of range"]
    changes = [MISTAKES[name][0][0] for name in names]
    refused(runs.train(0, tmp_path / "run", *changes), *(MISTAKES[name][1] for name in names))


@pytest.mark.parametrize("mistake", ["odd population", "unknown environment", "small table"])
def test_errors_are_reported_once_on_three_ranks(mistake: str, tmp_path: Path) -> None:
    arguments, text = MISTAKES[mistake]
    done = runs.train(3, tmp_path / "run", *arguments)
    refused(done, text)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1  # and nothing from the launcher


@pytest.mark.parametrize("arguments", [[], ["--resume", "perhaps"], ["--verbose"]])
def test_invalid_command_line_is_reported_once(arguments: list[str], tmp_path: Path) -> None:
    config = [str(runs.tiny(tmp_path))] if arguments else []
    done = mpiexec(
        2 if not arguments else 1, ["-m", "hpc_es.main", *config, *arguments], cwd=tmp_path
    )
    refused(done, "(see python -m hpc_es.main --help)")


@pytest.mark.long
def test_output_that_cannot_be_created_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = ["--output", str(tmp_path / "file" / "run")]
    refused(
        runs.train(2, tmp_path / "run", *below),
        "cannot be created: Not a directory; choose another --output",
    )
    refused(
        runs.train(0, tmp_path / "run", "--output", "/proc/self"),
        "output: expected a directory to write to, found /proc/self",
    )


def test_output_that_is_not_a_writable_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    data = {"task": {"env_id": "CartPole-v1"}, "output": str(tmp_path / "file")}
    (line,) = lines_of_check(data, tmp_path)
    assert line.startswith(f"output: expected a directory to write to, found {tmp_path / 'file'}")
    (tmp_path / "theirs").mkdir()

    def refuse(prefix: str, dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "theirs")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    (line,) = lines_of_check({**data, "output": str(tmp_path / "theirs")}, tmp_path)
    assert (
        line.startswith("output: expected a directory to write to")
        and "Read-only file system" in line
    )
    with pytest.raises(ConfigError, match="expected a directory to write to"):
        next(iter(hpc_es.train({"task": {"env_id": "CartPole-v1"}}, tmp_path / "file")))


def test_check_prints_sizes_and_trains_nothing(tmp_path: Path) -> None:
    done = runs.train(1, tmp_path / "run", "--check")
    assert done.status == 0 and done.stderr == "", str(done)
    assert "observations 4, actions Box of 2, parameters 58\n" in done.stdout
    assert "noise table 0 MB per node" in done.stdout and "WARNING" not in done.stdout
    assert not (tmp_path / "run").exists()


def test_check_warns_about_hidden_state(tmp_path: Path) -> None:
    hidden = "task.env_id=tests.helpers.toys:Hidden-v0"
    done = runs.train(0, tmp_path / "run", "--check", hidden)
    assert (
        done.status == 0
        and "WARNING: tests.helpers.toys:Hidden-v0 gives other episodes" in done.stdout
    ), str(done)
    done = runs.train(0, tmp_path / "run", "--check", hidden, "task.fresh_environment=true")
    assert done.status == 0 and "WARNING" not in done.stdout, str(done)


@contextlib.contextmanager
def owner(run: Path) -> Iterator[runs.Job]:
    """A job that holds the run directory and runs slowly while the file `slow` exists."""
    run.parent.joinpath("slow").touch()
    with runs.begin(2, run, "stop.generations=36", slowed(run)) as job:
        runs.wait_for(lambda: runs.generation(run) >= 1)
        yield job


def slowed(run: Path) -> str:
    return f"task.env_kwargs.pause_file={run.parent / 'slow'}"


@pytest.mark.long
def test_directory_in_use_is_refused_and_its_owner_continues(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as job:
        master = job.pids()[0]
        done = runs.train(3, tmp_path / "run", slowed(tmp_path / "run"))
        host = job.stdout.partition("0=")[2].partition(":")[0]
        assert job.process.poll() is None, "the owner ended before the test"
        refused(done, f"is in use by process {master} on host {host} since")
        assert "array" not in done.stderr
        task = {"SLURM_ARRAY_TASK_ID": "1"}
        done = runs.train(0, tmp_path / "run", slowed(tmp_path / "run"), env=task)
        refused(done, "Tasks of a job array can only share repetitions: set repetitions")
        (tmp_path / "slow").unlink()
        ended = job.wait()
        assert ended.status == 0, str(ended)
    runs.finished(0, tmp_path / "alone", *runs.EVERY, "stop.generations=36")
    runs.assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.long
def test_directory_of_a_killed_owner_is_taken_over_at_once(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as job:
        job.signal(0, 9)
        since = time.monotonic()
        job.wait()
        (tmp_path / "slow").unlink()
        runs.finished(1, tmp_path / "run", slowed(tmp_path / "run"), "stop.generations=3")
        assert time.monotonic() - since < 20
