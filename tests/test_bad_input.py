"""A mistake costs a second, not a queue slot: status 2, and one message that says what to do, once."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.training.build import task_and_policy
from hpc_es.training.check import check
from tests import runs
from tests.harness import Finished, mpiexec, python

TOY = "tests.toys:Strange-v0"
MISTAKES = {
    "unknown key": (["algorithm.sigm=0.1"], "unknown key 'algorithm.sigm'; did you mean 'sigma'?"),
    "wrong type": (["algorithm.sigma=large"], "algorithm.sigma: expected a number greater than 0, found 'large'"),
    "out of range": (["algorithm.optimizer.beta1=1.5"], "algorithm.optimizer.beta1: expected a number"),
    "sigma 0": (["algorithm.sigma=0"], "algorithm.sigma: expected a number greater than 0, found 0"),
    "weight decay < 0": (
        ["algorithm.weight_decay=-1"],
        "algorithm.weight_decay: expected a number of at least 0, found -1",
    ),
    "odd population": (["algorithm.population_size=7"], "mirrored sampling needs an even number (try 8)"),
    "unknown kind": (["algorithm.kind=ess"], "algorithm.kind: expected"),
    "unknown environment": (["task.env_id=CartPool-v1"], "did you mean 'CartPole-v1'?"),
    "unknown module": (["task.env_id=nowhere:Env-v0"], "module 'nowhere' cannot be imported"),
    "unknown wrapper": (
        ["task.wrappers=['gymnasium.wrappers:FlattenObservations']"],
        "task.wrappers[0]: expected 'module:Class', found 'gymnasium.wrappers:FlattenObservations'",
    ),
    "images": ([f"task.env_id={TOY}", "task.env_kwargs.observations=image"], "expected flat observations"),
    "dicts": ([f"task.env_id={TOY}", "task.env_kwargs.observations=dict"], "FlattenObservation' to task.wrappers"),
    "keywords": (
        ["task.env_kwargs.colour=red"],
        "task.env_kwargs: tests.trouble:Rough-v0 does not take these keywords",
    ),
    "bins": (
        ["task.env_id=CartPole-v1", "policy.action_bins=5"],
        "policy.action_bins: is 5, but the actions are Discrete",
    ),
    "noise on Discrete actions": (
        ["task.env_id=CartPole-v1", "policy.action_noise_std=0.1"],
        "policy.action_noise_std: is 0.1, but the actions are Discrete(2)",
    ),
    "export without a policy": (
        ["task={kind: programs, name: add}", "policy=", "algorithm={kind: ga}", "report.export_interval=1"],
        "report.export_interval: is 1, but the task programs has no policy to export",
    ),
    "small table": (["noise.table_size=57"], "noise.table_size: is 57, but the policy has 58 parameters: at least 58"),
    "unknown program": (
        ["task={kind: programs, name: ad}", "policy=", "algorithm={kind: ga}"],
        "task.name: expected one of",
    ),
    "policy for programs": (
        ["task={kind: programs, name: add}", "algorithm={kind: ga}"],
        "policy: nothing acts in the task 'programs'",
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
    "no stop": (["evaluation.interval=0", "stop.target_return=1"], "stop.target_return: needs evaluations"),
}


VALLEY: dict[str, Any] = {"kind": "function", "function": "tests.toys:valley", "dimension": 3}
UNIT = {"low": 0, "high": 1}
IN_A_SEARCH = {  # task, options of cma_es, what --check says
    "one sample": (VALLEY, {"population_size": 1}, "algorithm.population_size: expected a whole number of at least 2"),
    "sigma 0": (VALLEY, {"sigma": 0}, "algorithm.sigma: expected a number greater than 0, or null, found 0"),
    "a kind of restarts": (VALLEY, {"restarts": "bipo"}, "algorithm.restarts: expected one of 'none', 'ipop', 'bipop'"),
    "no growth": (VALLEY, {"restarts": "ipop", "population_factor": 1}, "expected a number greater than 1, found 1"),
    "an unknown stop": (VALLEY, {"stops": {"tolfunn": 1}}, "'algorithm.stops.tolfunn'; did you mean 'tolfun'?"),
    "a tolerance below 0": (VALLEY, {"stops": {"tolx": -1}}, "algorithm.stops.tolx: expected a number of at least 0"),
    "an option of es": (VALLEY, {"beta1": 0.5}, "did you mean 'algorithm.optimizer.beta1' of kind actor_critic, es"),
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
    "many parameters": ({"env_id": "CartPole-v1"}, {}, "has the square of 4,610 parameters: expected at most 2,000"),
    "programs": (
        {"kind": "programs", "name": "add"},
        {},
        "task.kind: is 'programs', but the algorithm 'cma_es' searches vectors",
    ),
}


@pytest.mark.parametrize("mistake", IN_A_SEARCH)
def test_a_mistake_in_a_search_by_cma_es_is_told_by_check(mistake: str) -> None:
    """4 inputs, two layers of 64 and 2 outputs: 320 + 4160 + 130 parameters."""
    task, options, said = IN_A_SEARCH[mistake]
    policy = {"policy": {"hidden_dims": [64, 64]}} if "env_id" in task else {}
    with pytest.raises(ConfigError) as caught:
        check(validate({"task": task, "algorithm": {"kind": "cma_es", **options}, **policy}))
    assert said in str(caught.value)


def refused(done: Finished, *texts: str) -> None:
    """Status 2 and each text once on stderr, without a traceback, in no time."""
    assert done.status == 2 and not done.timed_out, str(done)
    assert "Traceback" not in done.stderr + done.stdout, str(done)
    for text in texts:
        assert done.stderr.count(text) == 1, f"{text!r} in {done}"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_and_leaves_nothing(mistake: str, tmp_path: Path) -> None:
    arguments, text = MISTAKES[mistake]
    refused(runs.train(0, tmp_path / "run", *arguments), text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mistake", ["noise on Discrete actions", "export without a policy"])
def test_what_would_fail_later_is_told_by_check(mistake: str, tmp_path: Path) -> None:
    arguments, text = MISTAKES[mistake]
    refused(runs.train(0, tmp_path / "run", "--check", *arguments), text)


@pytest.mark.parametrize(("found", "said"), [("keras_model", "kind 'mlp' cannot"), ("tensorflow", "is not installed")])
def test_an_export_that_cannot_be_made_is_told(found: str, said: str, monkeypatch: Any) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if found in name else real(name))
    data = {"task": {"env_id": "CartPole-v1"}, "report": {"export_interval": 5}}
    with pytest.raises(ConfigError, match=f"report.export_interval: is 5, .*{said}"):
        task_and_policy(validate(data))


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
def test_a_file_that_is_no_config(text: str | None, said: str, tmp_path: Path) -> None:
    runs.tiny(tmp_path)
    path = tmp_path / "tinny.yaml"
    if text is not None:
        path.write_text(text)
    refused(python(["-m", "hpc_es.main", str(path), "--output", str(tmp_path / "run")]), said)


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    names = ["sigma 0", "weight decay < 0", "unknown key", "odd population", "out of range"]
    changes = [MISTAKES[name][0][0] for name in names]
    refused(runs.train(0, tmp_path / "run", *changes), *(MISTAKES[name][1] for name in names))


@pytest.mark.parametrize("mistake", ["odd population", "unknown environment", "small table"])
def test_on_three_ranks_a_mistake_is_told_once(mistake: str, tmp_path: Path) -> None:
    arguments, text = MISTAKES[mistake]
    done = runs.train(3, tmp_path / "run", *arguments)
    refused(done, text)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1  # and nothing from the launcher


@pytest.mark.parametrize("arguments", [[], ["--resume", "perhaps"], ["--verbose"]])
def test_a_wrong_command_line_is_told_once(arguments: list[str], tmp_path: Path) -> None:
    config = [str(runs.tiny(tmp_path))] if arguments else []
    done = mpiexec(2 if not arguments else 1, ["-m", "hpc_es.main", *config, *arguments], cwd=tmp_path)
    refused(done, "usage: python -m hpc_es.main")


@pytest.mark.long
def test_an_output_that_cannot_be_made_or_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = ["--output", str(tmp_path / "file" / "run")]
    refused(runs.train(2, tmp_path / "run", *below), "cannot be made: Not a directory; choose another --output")
    refused(runs.train(0, tmp_path / "run", "--output", "/proc/self"), "output /proc/self cannot be used")


def test_check_prints_sizes_and_trains_nothing(tmp_path: Path) -> None:
    done = runs.train(1, tmp_path / "run", "--check")
    assert done.status == 0 and done.stderr == "", str(done)
    assert "observations 4, actions Box of 2, parameters 58\n" in done.stdout
    assert "noise table 0 MB a node" in done.stdout and "WARNING" not in done.stdout
    assert not (tmp_path / "run").exists()


def test_check_warns_of_hidden_state(tmp_path: Path) -> None:
    hidden = "task.env_id=tests.toys:Hidden-v0"
    done = runs.train(0, tmp_path / "run", "--check", hidden)
    assert done.status == 0 and "WARNING: tests.toys:Hidden-v0 gives other episodes" in done.stdout, str(done)
    done = runs.train(0, tmp_path / "run", "--check", hidden, "task.fresh_environment=true")
    assert done.status == 0 and "WARNING" not in done.stdout, str(done)


@contextlib.contextmanager
def owner(run: Path) -> Iterator[runs.Job]:
    """A job that has the run directory and goes on, but slowly while the file `slow` is there."""
    run.parent.joinpath("slow").touch()
    with runs.begin(2, run, "stop.generations=36", slowed(run)) as job:
        runs.wait_for(lambda: runs.generation(run) >= 1)
        yield job


def slowed(run: Path) -> str:
    return f"task.env_kwargs.pause_file={run.parent / 'slow'}"


@pytest.mark.long
def test_a_directory_in_use_is_refused_and_its_owner_unharmed(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as job:
        master = job.pids()[0]
        done = runs.train(3, tmp_path / "run", slowed(tmp_path / "run"))
        host = job.stdout.partition("0=")[2].partition(":")[0]
        assert job.process.poll() is None, "the owner ended before the test"
        refused(done, f"is in use by process {master} on host {host} since")
        assert "array" not in done.stderr
        task = {"SLURM_ARRAY_TASK_ID": "1"}
        done = runs.train(0, tmp_path / "run", slowed(tmp_path / "run"), env=task)
        refused(done, "Tasks of a job array share the repetitions of one output: set repetitions")
        (tmp_path / "slow").unlink()
        ended = job.wait()
        assert ended.status == 0, str(ended)
    runs.finished(0, tmp_path / "alone", *runs.EVERY, "stop.generations=36")
    runs.assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.long
def test_the_directory_of_a_killed_owner_is_taken_over_at_once(tmp_path: Path) -> None:
    with owner(tmp_path / "run") as job:
        job.signal(0, 9)
        since = time.monotonic()
        job.wait()
        (tmp_path / "slow").unlink()
        runs.finished(1, tmp_path / "run", slowed(tmp_path / "run"), "stop.generations=3")
        assert time.monotonic() - since < 20
