"""User-defined code: found by every command, identified by its hash, never run without consent."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import hpc_es
from hpc_es.config import user_code
from hpc_es.config.resolved import sources
from hpc_es.core.errors import UserError
from hpc_es.storage import checkpoint
from tests.helpers.harness import Finished, mpiexec, python
from tests.helpers.runs import digest, newest

CAR = """
import gymnasium
import numpy as np

class Line(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.normal())
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 2 * int(action) - 1
        return np.array([self.x], np.float32), -abs(self.x), False, False, {}

    def render(self):
        return np.full((8, 8, 3), 99, np.uint8)

gymnasium.register("Lines-v0", Line, max_episode_steps=5)
"""
NET = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
from hpc_es.config.options import Count, option, options
from hpc_es.policies.mlp import MLP
from hpc_es.policies.mlp import Options as Ours

class Net:
    @options
    class Options:
        kind: str = option("which")
        width: Count = option("of the layer", 4)

    @staticmethod
    def build(options, spaces):
        return MLP(Ours(hidden_dims=(options.width,)), spaces)
"""
CONFIG = """
task: {kind: episodes, env_id: "mycar:Lines-v0"}
policy: {kind: "mynet:Net", width: 3}
algorithm: {kind: es, population_size: 4}
noise: {kind: counter}
mpi: {chunk_size: 2}
evaluation: {interval: 1, episodes: 2}
checkpoint: {interval: 1}
stop: {generations: 2}
report: {plot_interval_seconds: 0}
"""
Cli = Callable[..., Finished]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A current directory with the modules; the config lies elsewhere."""
    (tmp_path / "here").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "here" / "mycar.py").write_text(CAR)
    (tmp_path / "here" / "mynet.py").write_text(NET)
    (tmp_path / "configs" / "car.yaml").write_text(CONFIG)
    # as pip installs it: sys.path[0]
    (tmp_path / "bin" / "hpc-es").write_text("from hpc_es.cli import main\nmain()\n")
    return tmp_path / "here"


@pytest.fixture
def cli(here: Path) -> Cli:
    """Run `hpc-es ARGUMENTS`, by default in the directory `here`;
    the status must be the one expected.
    """

    def run(*arguments: str | Path, status: int = 0, cwd: Path = here) -> Finished:
        done = python([str(here.parent / "bin" / "hpc-es"), *map(str, arguments)], cwd=cwd)
        assert done.status == status, str(done)
        return done

    return run


def train(here: Path, *overrides: str, ranks: int = 0, status: int = 0) -> Finished:
    arguments = [
        "-m",
        "hpc_es.main",
        str(here.parent / "configs" / "car.yaml"),
        "--output",
        str(here / "run"),
    ]
    run = python if ranks == 0 else lambda *args, **more: mpiexec(ranks, *args, **more)
    done = run([*arguments, *overrides], cwd=here)
    assert done.status == status, str(done)
    return done


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Found by every command alike.


@pytest.mark.long
def test_all_commands_find_modules_in_the_current_directory(here: Path, cli: Cli) -> None:
    config = here.parent / "configs" / "car.yaml"
    cli("check", config)
    assert "policy.width" in cli("options", "--config", config).stdout
    assert "#SBATCH" in cli("sbatch", config, "--dry-run").stdout
    train(here)
    cli("eval", "run", "--episodes", "2", "--video", "film.gif")
    assert (here / "film.gif").stat().st_size > 0
    # as its kind is not ours, and not as it is not found
    refused = cli("export", "run", "policy.keras", status=2)
    assert "cannot be exported" in refused.stderr or "pip install" in refused.stderr


@pytest.mark.long
def test_all_commands_find_modules_next_to_the_config(here: Path, cli: Cli) -> None:
    for name in ("mycar.py", "mynet.py"):
        (here / name).rename(here.parent / "configs" / name)
    config = here.parent / "configs" / "car.yaml"
    cli("check", config)
    cli("sbatch", config, "--dry-run")
    train(here)
    cli("eval", here / "run", "--episodes", "2", cwd=here.parent)
    tuning = here.parent / "configs" / "tune.yaml"
    tuning.write_text("base: car.yaml\nspace: {policy.width: [2, 3]}\n")
    assert "2 complete" in cli("tune", tuning).stdout
    assert "complete" in cli("tune-report", "runs/tune").stdout
    assert python(["-m", "hpc_es.main", "runs/tune/best.yaml"], cwd=here).status == 0


@pytest.mark.long
def test_missing_module_directory_is_reported_with_a_remedy(here: Path, cli: Cli) -> None:
    for name in ("mycar.py", "mynet.py"):
        (here / name).rename(here.parent / "configs" / name)
    train(here)
    (here.parent / "configs").rename(here.parent / "moved")
    refused = cli("eval", "run", status=2).stderr
    assert (
        "expected the source of 'mycar:Lines-v0'" in refused
        and "start this command in its directory" in refused
    )
    cli("eval", here / "run", "--episodes", "2", cwd=here.parent / "moved")


def test_library_call_finds_user_modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(here)
    program = "import hpc_es; print(hpc_es.load_policy('run').params, len(list(hpc_es.train('../configs/car.yaml', 'b'))))"
    (here.parent / "bin" / "program.py").write_text(program)
    done = python([str(here.parent / "bin" / "program.py")], cwd=here)
    assert done.stdout.splitlines()[-1] == f"{3 + 3 + 3 * 2 + 2} 2", str(done)


# Hashes.


def test_source_hash_is_in_config_yaml_and_the_checkpoint(here: Path) -> None:
    train(here)
    expected = {"mycar:Lines-v0": sha256(here / "mycar.py"), "mynet:Net": sha256(here / "mynet.py")}
    assert newest(here / "run").provenance["sources"] == expected
    assert expected["mynet:Net"] in (here / "run" / "config.yaml").read_text()


@pytest.mark.long
def test_resume_with_a_changed_source_warns_and_records_both_hashes(here: Path) -> None:
    train(here)
    before = sha256(here / "mynet.py")
    (here / "mynet.py").write_text(NET + "# changed\n")
    after = sha256(here / "mynet.py")
    said = train(here, "stop.generations=3").stdout
    assert (
        f"WARNING: the source of mynet:Net has changed: SHA-256 {before} in the checkpoint, {after} now"
        in said
    )
    train(here, "stop.generations=4")
    provenance = newest(here / "run").provenance
    assert provenance["sources"] == {
        "mycar:Lines-v0": sha256(here / "mycar.py"),
        "mynet:Net": after,
    }
    assert provenance["earlier_sources"] == {"mynet:Net": [before]}


def test_different_sources_on_ranks_are_refused_before_the_run(here: Path) -> None:
    """Rank 1 reads another file, as on a node with an older copy."""
    (here / "other").mkdir()
    (here / "other" / "mynet.py").write_text(
        NET.replace('"imported"', '"../imported"') + "# older\n"
    )
    program = "import os, sys\nif os.environ.get('PMI_RANK') == '1': sys.path.insert(0, 'other')\n"
    program += f"sys.argv[1:] = ['{here.parent / 'configs' / 'car.yaml'}', '--output', 'run']\n"
    (here / "job.py").write_text(program + "from hpc_es.main import main\nmain()\n")
    done = mpiexec(3, ["job.py"], cwd=here)
    assert done.status == 2, str(done)
    mine, other = sha256(here / "mynet.py"), sha256(here / "other" / "mynet.py")
    assert (
        f"the source of mynet:Net is not the same on all ranks: SHA-256 {mine} on rank 0"
        in done.stderr
    )
    assert f"{other} on rank 1" in done.stderr
    assert not (here / "run").exists()


def test_user_code_is_identical_on_three_ranks(here: Path) -> None:
    train(here, ranks=3)
    three = digest(newest(here / "run"))
    shutil.rmtree(here / "run")
    train(here)
    assert digest(newest(here / "run")) == three


WRAPPED = """
import gymnasium

class Same(gymnasium.Wrapper):
    pass
"""


def test_sources_of_environments_and_wrappers_are_recorded_unless_installed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point in another module is known once the environment is registered."""
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Other tests of this process may have registered an environment of this name.
    others = {name: spec for name, spec in gymnasium.registry.items() if name != "Lines-v0"}
    monkeypatch.setattr(gymnasium, "registry", others)
    user_code.make_importable()
    (here / "mywrap.py").write_text(WRAPPED)
    wrappers = [
        "gymnasium.wrappers:TimeAwareObservation",
        {"mywrap:Same": {}},
        "hpc_es.tasks.last_step:LastStep",
    ]
    task = {"kind": "episodes", "env_id": "mycar:Lines-v0", "wrappers": wrappers}
    known = {"mycar:Lines-v0": sha256(here / "mycar.py"), "mywrap:Same": sha256(here / "mywrap.py")}
    assert sources({"task": task}) == known
    environments = {**gymnasium.registry}
    monkeypatch.setattr(gymnasium, "registry", environments)
    environments["Lines-v0"] = EnvSpec(id="Lines-v0", entry_point="mynet:Net")
    assert sources({"task": task}) == {**known, "mynet:Net": sha256(here / "mynet.py")}
    assert sources({"task": {**task, "env_id": "Lines-v0", "wrappers": []}}) == {
        "mynet:Net": sha256(here / "mynet.py")
    }
    for plain in (
        "CartPole-v1",
        "HalfCheetah-v5",
        "hpc_es/Bandit-v0",
        "gymnasium.envs.classic_control:Acrobot-v1",
    ):
        assert sources({"task": {"kind": "episodes", "env_id": plain}}) == {}


@pytest.mark.long
def test_changed_environment_warns_at_a_resume_and_is_refused_by_eval(here: Path, cli: Cli) -> None:
    """The class is in another module than its registration,
    which only the training has imported.
    """
    registration = 'gymnasium.register("Lines-v0", Line, max_episode_steps=5)'
    (here / "engine.py").write_text(CAR.replace(registration, ""))
    (here / "mycar.py").write_text(
        f"import gymnasium\n{registration.replace('Line,', repr('engine:Line') + ',')}\n"
    )
    train(here)
    before = sha256(here / "engine.py")
    recorded = newest(here / "run").provenance["sources"]
    assert recorded == {
        **{"mycar:Lines-v0": sha256(here / "mycar.py"), "engine:Line": before},
        "mynet:Net": sha256(here / "mynet.py"),
    }
    cli("eval", "run", "--episodes", "2")
    (here / "engine.py").write_text(CAR.replace(registration, "# changed"))
    assert "would run 'engine:Line'" in cli("eval", "run", status=2).stderr
    cli("eval", "run", "--episodes", "2", "--trust")
    said = train(here, "stop.generations=3").stdout
    assert (
        f"WARNING: the source of engine:Line has changed: SHA-256 {before} in the checkpoint"
        in said
    )
    assert said.count("WARNING") == 1


def test_run_without_a_recorded_source_resumes_silently(here: Path) -> None:
    """As a run of a version that recorded none."""
    train(here)
    for path in (here / "run" / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        known = {"mynet:Net": old.provenance["sources"]["mynet:Net"]}
        checkpoint.save(
            path, dataclasses.replace(old, provenance={**old.provenance, "sources": known})
        )
    assert "WARNING" not in train(here, "stop.generations=3").stdout
    assert set(newest(here / "run").provenance["sources"]) == {"mycar:Lines-v0", "mynet:Net"}


# Trust.


@pytest.mark.long
def test_changed_source_is_run_only_with_trust(here: Path, cli: Cli) -> None:
    train(here)
    cli("eval", "run", "--episodes", "2")
    (here / "mynet.py").write_text(NET + "# changed\n")
    (here / "imported").unlink()
    for command in (
        ["eval", "run"],
        ["eval", "run", "--all"],
        ["export", "run", "a.keras"],
        ["bandit-report", "run"],
    ):
        refused = cli(*command, status=2).stderr
        assert "would run 'mynet:Net'" in refused and "--trust" in refused, refused
    assert not (here / "imported").exists()
    for trusted in (["eval", "run"], ["eval", "run", "--all"]):
        cli(*trusted, "--episodes", "2", "--trust")
    assert (here / "imported").exists()


def test_load_policy_needs_trust_for_changed_sources(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(here)
    (here / "mynet.py").write_text(NET + "# changed\n")
    monkeypatch.chdir(here)
    with pytest.raises(UserError, match=r"would run 'mynet:Net', .*give --trust \(trust=True\)"):
        hpc_es.load_policy("run")


def test_modules_in_the_run_directory_are_not_found(here: Path, cli: Cli) -> None:
    train(here)
    for name in ("mycar.py", "mynet.py"):
        (here / name).rename(here / "run" / name)
    (here / "imported").unlink()
    refused = cli("eval", ".", status=2, cwd=here / "run").stderr
    assert "expected the source of 'mycar:Lines-v0'" in refused
    assert not (here / "run" / "imported").exists()


# Plain data.


@pytest.mark.long
def test_commands_that_read_a_run_import_none_of_its_modules(here: Path, cli: Cli) -> None:
    train(here)
    train(here, "repetitions=2", f"output={here / 'several'}", "--output", str(here / "several"))
    (here / "imported").unlink()
    inspected = json.loads(cli("inspect", "run", "--json").stdout)
    assert inspected["config"]["policy"] == {"kind": "mynet:Net", "width": 3}
    cli("plot", "run", "-o", "curve.png")
    cli("results", "run")
    cli("results", "several")
    cli("inspect", "several")
    assert not (here / "imported").exists()
    cli("eval", "run", "--episodes", "1")
    assert (here / "imported").exists()  # else nothing was shown


@pytest.mark.long
def test_tune_report_imports_no_user_modules(here: Path, cli: Cli) -> None:
    tuning = here.parent / "configs" / "tune.yaml"
    tuning.write_text("base: car.yaml\nspace: {policy.width: [2, 3]}\n")
    cli("tune", tuning)
    (here / "imported").unlink()
    assert "2 complete" in cli("tune-report", "runs/tune").stdout
    assert not (here / "imported").exists()


def test_hashes_of_functions_and_programs_are_recorded(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    user_code.make_importable()
    (here / "simulate.py").write_text("print(1)")
    function = {"task": {"kind": "function", "function": "mycar:cost"}}
    command = {
        "task": {"kind": "command", "command": ["./simulate.py", "{parameters}", "{result}"]},
        "directory": str(here),
    }
    assert sources(function) == {"mycar:cost": sha256(here / "mycar.py")}
    assert sources(command) == {"./simulate.py": sha256(here / "simulate.py")}
