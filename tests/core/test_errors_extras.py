"""Missing optional packages are reported before a command starts,
with the pip command that installs them.
"""

from __future__ import annotations

import configparser
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config.loading import validate
from hpc_es.config.yaml_text import override
from hpc_es.core.errors import EXTRAS, ConfigError, UserError
from hpc_es.report import video
from hpc_es.training.build import build_task
from tests.helpers import runs
from tests.helpers.harness import ROOT, python, script

CARTPOLE: dict[str, Any] = {
    "task": {"env_id": "CartPole-v1"},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"population_size": 8},
    "noise": {"table_size": 10_000},
    "stop": {"generations": 2},
}
ACTOR_CRITIC = ("algorithm={kind: actor_critic}", "noise={}")


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make the package appear as not installed, also to modules that have imported it."""
    for name in [
        name for name in sys.modules if package in name.split(".") and not name.startswith("hpc_es")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_every_extra_is_in_setup_cfg_and_brings_its_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for package, extra in EXTRAS.items():
        others = {
            "keras": "tensorflow",
            "pygame": "classic-control",
            "cocoex": "coco-experiment",
            "jaxlib": "jax",
            "imageio_ffmpeg": "imageio-ffmpeg",
            "ale_py": "ale-py",
        }  # what brings it, if not its name
        assert others.get(package, package).lower() in setup["options.extras_require"][extra], (
            package
        )


@pytest.mark.parametrize(
    ("package", "overrides", "key", "line"),
    [
        (
            "tensorflow",
            ["policy.backend=tensorflow"],
            "policy.backend",
            "[tensorflow]', or choose numpy",
        ),
        pytest.param(
            *("tensorflow", ACTOR_CRITIC, "algorithm.kind", "[tensorflow]'"),
            marks=pytest.mark.satellite("actor_critic"),
        ),
        (
            "tensorflow",
            ["report.export_interval=1"],
            "report.export_interval",
            "[tensorflow]', or set it to 0",
        ),
        (
            "tensorboard",
            ["report.tensorboard=true"],
            "report.tensorboard",
            "[tensorboard]', or set it to false",
        ),
        ("mlflow", ["report.loggers=[mlflow]"], "report.loggers", "[mlflow]', or remove it"),
        (
            "wandb",
            ["report.loggers=[tensorboard, wandb]"],
            "report.loggers",
            "[wandb]', or remove it",
        ),
        ("mujoco", ["task.env_id=HalfCheetah-v5"], "task.env_id", "[mujoco]'"),
        ("Box2D", ["task.env_id=LunarLander-v3"], "task.env_id", "[box2d]'"),
    ],
)
def test_config_that_needs_an_extra_names_the_key_and_pip_command(
    package: str, overrides: list[str], key: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, package)
    with pytest.raises(ConfigError) as message:
        build_task(validate(override(CARTPOLE, overrides)))
    assert [item for item, _ in message.value.problems] == [key]
    assert f"{package}, which is not installed: pip install 'hpc_es{line}" in str(message.value)


def test_environment_of_the_old_gym_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "gym")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "before_gymnasium.py").write_text("import gym\n")
    with pytest.raises(
        ConfigError, match=r"task\.env_id: .*'gym' cannot be imported: pip install 'hpc_es\[gym\]'"
    ):
        build_task(validate(override(CARTPOLE, ["task.env_id=before_gymnasium:Old-v0"])))


def test_video_needs_imageio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "imageio")
    with pytest.raises(UserError, match=r"a video needs imageio, .*pip install 'hpc_es\[video\]'"):
        video.prepare(tmp_path / "x.gif")


def test_video_of_cartpole_needs_pygame(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runs.finished(0, run, "task.env_id=CartPole-v1", "stop.generations=1")
    hidden = (
        "import sys; sys.modules['pygame'] = None; from hpc_es import cli; cli.main(sys.argv[1:])"
    )
    done = python(
        ["-c", hidden, "eval", str(run), "--episodes", "1", "--video", str(tmp_path / "x.gif")]
    )
    assert done.status == 2 and "pip install 'hpc_es[video]'" in done.stderr, str(done)


def test_optuna_study_needs_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_es.tuning.run import Master, TuneRequest

    hide(monkeypatch, "optuna")
    runs.tiny(tmp_path)
    space = "{algorithm.sigma: {uniform: [0.1, 0.2]}}"
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text(f"{{base: tiny.yaml, search: optuna, trials: 2, space: {space}}}")
    with pytest.raises(
        UserError, match=r"search: optuna needs optuna, .*pip install 'hpc_es\[tune\]'"
    ):
        Master(TuneRequest(tuning, tmp_path / "out", (), None), 1)


@pytest.mark.long
def test_run_with_plots_needs_no_extra(tmp_path: Path) -> None:
    """From the config to curve.png and the evaluation."""
    config, run = str(runs.tiny(tmp_path)), str(tmp_path / "run")
    hidden = sorted({*EXTRAS, "psutil", "optuna"} - {"mpich"})
    done = python(
        script(f"""
        import runpy, sys
        sys.modules.update(dict.fromkeys({hidden}))
        from hpc_es import cli
        sys.argv[1:] = [{config!r}, "--output", {run!r}, "task.env_id=CartPole-v1", "report.plot_interval_seconds=30"]
        try:
            runpy.run_module("hpc_es.main", run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, ended
        sys.exit(cli.run(["eval", {run!r}, "--episodes", "2"]))
    """),
        cwd=ROOT,
    )
    assert done.status == 0 and (tmp_path / "run" / "curve.png").exists(), str(done)
