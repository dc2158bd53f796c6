"""The output of the commands, and their errors: one line, status 2."""

from __future__ import annotations

import ctypes.util
import errno
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

import hpc_es
from hpc_es import __version__, cli
from hpc_es.api.evaluate import seeds
from hpc_es.core.errors import DeniedError
from hpc_es.report import video
from hpc_es.storage.checkpoint_directory import find
from hpc_es.trained.policy import load_policy
from tests.helpers import runs
from tests.helpers.deep import deep
from tests.helpers.harness import python
from tests.helpers.toys import lifetime
from tests.helpers.trained import CONFIG, lengths_by_hand, run, snapshot, strict_json

KEYS = {
    *("return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("episodes", "failed", "generation", "env_id", "which"),
}


def env(name: str) -> str:
    module = "trained" if name in {"Talking", "Painted"} else "toys"
    return f"task.env_id=tests.helpers.{module}:{name}-v0"


def evaluated(capfd: Any, path: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The output of `hpc-es eval --json`."""
    run(*())  # printed before the capture is emptied
    capfd.readouterr()
    assert cli.run(["eval", str(path), "--json", *arguments]) == status
    result = strict_json(capfd.readouterr().out)
    assert set(result) == KEYS
    assert isinstance(result, dict)
    return result


def test_eval_of_known_episodes(capfd: Any) -> None:
    # more than a chunk; the return is the length
    lifetimes = [lifetime(seed) for seed in seeds(3, range(20))]
    result = evaluated(capfd, run(), "--episodes", "20", "--seed", "3")
    assert result["return_mean"] == result["length_mean"] == pytest.approx(sum(lifetimes) / 20)
    assert result["return_std"] == pytest.approx(np.std(lifetimes))
    assert (result["return_min"], result["return_max"]) == (min(lifetimes), max(lifetimes))
    assert (result["episodes"], result["failed"], result["env_id"]) == (
        20,
        0,
        "tests.helpers.toys:Survival-v0",
    )


@pytest.mark.long
def test_eval_episodes_depend_on_the_seed_only(capfd: Any) -> None:
    first, again, other = (
        evaluated(capfd, run(), "--episodes", "5", "--seed", seed) for seed in "001"
    )
    assert first == again
    assert first != other
    default = evaluated(capfd, run(), "--episodes", "100", "--seed", "0")
    assert default == evaluated(capfd, run())


@pytest.mark.long
def test_eval_plays_without_noise_offset_and_averaging(capfd: Any) -> None:
    path = run(
        env("Reach"),
        "policy.action_noise_std=0.5",
        "task.reward_offset=100",
        "task.episodes_per_job=3",
    )
    environment = gymnasium.make("tests.helpers.toys:Reach-v0")
    returns, lengths = lengths_by_hand(load_policy(path), environment, seeds(0, range(6)))
    result = evaluated(capfd, path, "--episodes", "6")
    assert result["return_mean"] == pytest.approx(np.mean(returns), rel=1e-6)
    assert result["length_mean"] == pytest.approx(np.mean(lengths))


def test_eval_selects_theta_by_which(capfd: Any) -> None:
    best = snapshot(run()).best
    assert best is not None
    # 25 in the end, at best 20 on the way
    assert evaluated(capfd, run(), "--episodes", "1")["which"] == "last"
    assert (
        evaluated(capfd, run(), "--episodes", "1", "--which", "best")["generation"]
        == best.generation
    )
    last = evaluated(capfd, run(), "--episodes", "1", "--which", "last")
    assert (last["which"], last["generation"]) == ("last", 2)


def test_eval_overrides_change_the_task(capfd: Any) -> None:
    result = evaluated(capfd, run(), "task.max_episode_steps=4", "--episodes", "20", "--seed", "3")
    assert result["length_mean"] == np.mean(
        [min(4, lifetime(seed)) for seed in seeds(3, range(20))]
    )


@pytest.mark.long
def test_eval_counts_and_names_failed_episodes(capfd: Any) -> None:
    played = seeds(0, range(6))
    bad = next(seed for seed in played if lifetime(seed) >= 3)  # Faulty raises in the third step
    left = [lifetime(seed) for seed in played if seed != bad]
    path = run(env("Faulty"), "task.on_failed_episode=abort")
    cli.run(["eval", str(path), "--episodes", "6", f"task.env_kwargs.bad_seed={bad}"])
    assert "the simulator diverged" in capfd.readouterr().err
    result = evaluated(capfd, path, "--episodes", "6", f"task.env_kwargs.bad_seed={bad}")
    assert result["failed"] == 1
    assert result["return_mean"] == pytest.approx(sum(left) / 5)


def test_eval_has_no_numbers_if_all_episodes_fail(capfd: Any) -> None:
    seed = seeds(0, [0])[0]
    bad = f"task.env_kwargs={{bad_seed: {seed}, at: 0}}"
    result = evaluated(capfd, run(env("Faulty")), "--episodes", "1", bad, status=1)
    assert result["failed"] == 1
    assert result["return_mean"] is result["length_mean"] is None


@pytest.mark.long
def test_output_of_the_environment_goes_to_stderr(capfd: Any) -> None:
    path = run(env("Talking"))
    evaluated(capfd, path, "--episodes", "1")  # strict JSON, or it fails
    cli.run(["eval", str(path), "--episodes", "1"])
    captured = capfd.readouterr()
    assert captured.out.startswith("return_mean ")
    assert "a word from Python" in captured.err and "a word from C" in captured.err


def test_inspect_json_describes_the_checkpoint(capsys: Any) -> None:
    path = run()
    capsys.readouterr()
    assert cli.run(["inspect", str(path), "--json"]) == 0
    content = strict_json(capsys.readouterr().out)
    expected = snapshot(path)
    theta = expected.state.theta.tolist()
    assert (
        content["theta_sha256"]
        == hashlib.sha256(struct.pack(f"<{len(theta)}f", *theta)).hexdigest()
    )
    assert (content["generation"], content["parameters"]) == (2, 3 * 4 + 4 + 4 * 2 + 2)
    assert content["path"] == str(path / "checkpoints" / "checkpoint_0000000002.h5")
    assert content["counters"]["episodes"] == 8
    assert expected.best is not None
    assert content["best"] == {
        "return": expected.best.return_,
        "generation": expected.best.generation,
    }
    assert content["config"]["algorithm"]["optimizer"]["learning_rate"] == 0.5
    assert content["config_hash"] == expected.config_hash
    assert content["provenance"]["versions"]["hpc_es"] == __version__
    arrays = {array["name"]: array for array in content["arrays"]}
    assert arrays["shared/theta"] == {
        "name": "shared/theta",
        "shape": [26],
        "dtype": "float32",
        "bytes": 104,
    }
    assert arrays["master/adam_m"]["shape"] == [26]


def test_inspect_prints_readable_text(capsys: Any) -> None:
    path = run("evaluation.interval=0")
    capsys.readouterr()
    assert cli.run(["inspect", str(find(path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "generation     2" in lines
    assert "best           none" in lines
    assert any(
        "shared/theta" in line and "float32[26]" in line and "104 bytes" in line for line in lines
    )
    assert "  name: tiny" in lines


def test_inspect_skips_a_damaged_checkpoint(tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run("checkpoint.interval=1"), copy)
    (copy / "checkpoints" / "checkpoint_0000000002.h5").write_bytes(b"hpc_es checkpoint\n")
    capsys.readouterr()
    assert cli.run(["inspect", str(copy), "--json"]) == 0
    assert strict_json(capsys.readouterr().out)["generation"] == 1


# results depend on the chunks
VECTOR = ["task.env_id=tests.helpers.vector_toys:InformativeLater-v0", "task.stepping=vector"]


@pytest.mark.parametrize(
    ("overrides", "ranks", "message"),
    [
        ([], "3", "ranks 3: there is work for all of them"),  # population 12 in chunks of 4
        (
            [],
            "8",
            "WARNING: 12 jobs per generation are 3 chunks for 8 evaluating ranks, so 5 ranks of 8 will be idle",
        ),
        (["mpi.chunk_size=auto"], "8", "ranks 8: there is work for all of them"),
        (
            ["mpi.chunk_size=auto", "repetition_groups=4", "repetitions=4"],
            "32",
            "ranks 8: there is work for all",
        ),
        (
            ["mpi.chunk_size=auto"],
            "64",
            "12 chunks for 63 evaluating ranks, so 51 ranks of 64 will be idle",
        ),
        ([*VECTOR, "mpi.chunk_size=auto"], "2", "1 rank of 2 will be idle"),  # chunks of 16 stay
        (VECTOR, "2", "chunks: 4 jobs: results depend on it, so it does not follow the ranks"),
    ],
)
def test_check_warns_about_idle_ranks(
    overrides: list[str],
    ranks: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["check", str(runs.tiny(tmp_path)), *overrides, "--ranks", ranks]) == 0
    assert message in capsys.readouterr().out


def test_output_with_directories_deep_within_each_other_is_checked(tmp_path: Path) -> None:
    with deep(tmp_path / "output"):
        config = runs.tiny(tmp_path)
        assert cli.run(["check", str(config), "--output", str(tmp_path / "output")]) == 0


@pytest.mark.parametrize(
    ("task", "given", "line"),
    [
        # CMA-ES: 4 + floor(3 ln 5) = 8
        (
            "{kind: function, function: 'math:fsum', dimension: 5}",
            "cma_es, sigma: 0.25",
            "8 evaluations",
        ),
        ("{kind: programs, name: reverse}", "ga", "100 programs"),
        ("{env_id: 'tests.helpers.toys:Survival-v0', episodes_per_job: 3}", "es", "192 episodes"),
    ],
)
def test_check_says_how_much_a_generation_evaluates(
    task: str, given: str, line: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "searched.yaml"
    path.write_text(f"task: {task}\nalgorithm: {{kind: {given}}}\nnoise: {{kind: counter}}\n")
    assert cli.run(["check", str(path), "--no-call"]) == 0
    sigma = ", sigma 0.25 at first" if "sigma" in given else ""
    assert f"  search: {line} per generation{sigma}\n" in capsys.readouterr().out


def test_plot_options_and_check(tmp_path: Path, capsys: Any) -> None:
    assert cli.run(["plot", str(run()), "-o", str(tmp_path / "curve.png"), "--x", "seconds"]) == 0
    assert iio.imread(tmp_path / "curve.png").std() > 0
    capsys.readouterr()
    assert cli.run(["options", "--markdown"]) == 0
    assert "| `algorithm.sigma` " in capsys.readouterr().out
    config = tmp_path / "toy.yaml"
    config.write_text("task: {env_id: 'tests.helpers.toys:Survival-v0'}\nnoise: {kind: counter}\n")
    assert cli.run(["check", str(config), "policy.hidden_dims=[4]"]) == 0
    assert "config is valid: toy" in capsys.readouterr().out


@pytest.mark.long
def test_video_has_every_frame_of_the_first_episode(tmp_path: Path) -> None:
    film = tmp_path / "film.gif"
    assert cli.run(["eval", str(run(env("Painted"))), "--episodes", "1", "--video", str(film)]) == 0
    frames = iio.imread(film)
    assert frames.shape == (5, 8, 10, 3)  # after reset, and after each of 4 steps
    np.testing.assert_allclose(frames[:, 0, 0, 0], [0, 20, 40, 60, 80], atol=3)
    assert iio.immeta(film)["duration"] == 40  # milliseconds, at 25 frames a second
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_video_can_be_written_as_mp4(tmp_path: Path, capfd: Any) -> None:
    """CartPole's 600 x 400 pixels are kept, without a warning about block sizes."""
    pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / "film.mp4"
    path = run("task.env_id=CartPole-v1")
    result = evaluated(
        capfd, path, "--episodes", "1", "--seed", "5", "--which", "last", "--video", str(film)
    )
    assert iio.improps(film, plugin="FFMPEG").shape[1:] == (400, 600, 3)
    assert len(list(iio.imiter(film, plugin="FFMPEG"))) == result["length_mean"] + 1
    assert "WARNING" not in capfd.readouterr().err


def test_video_renders_through_the_wrappers(tmp_path: Path) -> None:
    path, film = (
        run(env("Painted"), "task.wrappers=['tests.helpers.trained:Negative']"),
        tmp_path / "film.gif",
    )
    cli.run(["eval", str(path), "--episodes", "1", "--video", str(film)])
    np.testing.assert_allclose(iio.imread(film)[:, 0, 0, 0], [255, 235, 215, 195, 175], atol=3)


def test_video_is_of_the_first_episode_of_the_seed(tmp_path: Path, capfd: Any) -> None:
    film = tmp_path / "film.gif"
    path = run("task.env_id=CartPole-v1")
    result = evaluated(
        capfd, path, "--episodes", "1", "--seed", "5", "--which", "last", "--video", str(film)
    )
    frames = sum(iio.immeta(film, index=i)["duration"] for i in range(len(iio.imread(film)))) / 20
    assert frames == result["length_mean"] + 1
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_video_has_a_limit_for_endless_episodes(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(video, "MOST_FRAMES", 3)
    film = tmp_path / "film.gif"
    cli.run(["eval", str(run(env("Painted"))), "--episodes", "1", "--video", str(film)])
    assert len(iio.imread(film)) == 3
    assert "ends after 3 frames" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_video_keeps_few_frames_in_memory(suffix: str, tmp_path: Path) -> None:
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    alive: list[weakref.ref[Any]] = []
    most = 0

    def frames() -> Iterator[Any]:
        nonlocal most
        for number in range(20):
            frame = np.full((16, 16, 3), 10 * number, np.uint8)
            alive.append(weakref.ref(frame))
            most = max(most, sum(one() is not None for one in alive))
            yield frame

    video.save(frames(), 0.1, tmp_path / f"film{suffix}")
    assert len(alive) == 20 and most < 5


def test_gif_is_written_frame_by_frame(tmp_path: Path) -> None:
    """Each frame is that of the episode; equal ones are one that is shown for longer."""
    images = np.zeros((6, 16, 20, 3), np.uint8)
    images[1:, 3:5, 7:9] = [200, 0, 0]
    images[4:, 15, 19] = [0, 0, 255]
    images[5] = 255
    taken, parts = [], []

    def frames() -> Iterator[Any]:
        for number, image in enumerate(images):
            taken.append((number, len(parts)))
            yield image

    for part in video._gif(frames(), 50):
        parts.append(part)
    assert taken[-1][1] > taken[2][1] > 0, "the first frame is written before the last is drawn"
    (tmp_path / "film.gif").write_bytes(b"".join(parts))
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.info["loop"]) == (4, 0)
        for frame, (image, duration) in enumerate([(0, 50), (1, 150), (4, 50), (5, 50)]):
            film.seek(frame)
            assert film.info["duration"] == duration
            np.testing.assert_array_equal(np.asarray(film.convert("RGB")), images[image])


def test_failed_write_leaves_the_old_video(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    film = tmp_path / "film.gif"
    film.write_text("old")

    def full(*_: Any) -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(video, "_gif", full)
    with pytest.raises(SystemExit) as left:
        cli.main(["eval", str(run(env("Painted"))), "--episodes", "1", "--video", str(film)])
    assert left.value.code == 1
    assert f"{film}: cannot be written: No space left on device" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("film.gif", "old")]


@pytest.mark.parametrize("display, expected", [("", "egl"), (":0", None)])
def test_mujoco_renders_without_a_display(
    display: str, expected: str | None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setenv("MUJOCO_GL", "")  # so that what is set is taken back
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "lib" if name == "EGL" else None)
    video.prepare(tmp_path / "film.gif")
    assert os.environ.get("MUJOCO_GL") == expected


@pytest.fixture
def denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose directory cannot be read; monkeypatched, since chmod does not affect root."""
    path = tmp_path / "theirs"
    shutil.copytree(run(), path)

    def refusing(real: Any) -> Any:
        def call(position: Any = ".", *arguments: Any, **keywords: Any) -> Any:
            if not isinstance(position, int) and os.fsdecode(position).startswith(f"{path}/"):
                raise PermissionError(
                    errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(position)
                )
            return real(position, *arguments, **keywords)

        return call

    for module, name in (
        (os, "stat"),
        (os, "listdir"),
        (os, "scandir"),
        (os, "open"),
        (os, "mkdir"),
        (io, "open"),
    ):
        monkeypatch.setattr(module, name, refusing(getattr(module, name)))
    return path


@pytest.mark.parametrize(
    "arguments",
    [["eval"], ["inspect"], ["plot", "-o", "curve.png"], ["results"], ["export", "policy.keras"]],
)
def test_unreadable_run_is_reported_in_one_line(
    arguments: list[str], denied: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([arguments[0], str(denied), *arguments[1:]])
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2
    assert line.startswith(f"hpc-es: {denied}/") and "Permission denied: ask its owner" in line


def test_train_refuses_an_unreadable_run_directory(denied: Path) -> None:
    with pytest.raises(DeniedError, match="Permission denied: ask its owner"):
        next(iter(hpc_es.train(CONFIG, denied)))


@pytest.mark.parametrize("key", ["policy.init_from", "output", "policy.network"])
def test_name_that_no_file_can_have_is_reported_in_one_line(
    key: str, tmp_path: Path, capsys: Any
) -> None:
    kind = "{kind: network, backend: tensorflow, network: a.keras}"
    (tmp_path / "c.yaml").write_text(
        "task: {env_id: CartPole-v1}\nstop: {generations: 1}\n"
        + (f"policy: {kind}\n" if key == "policy.network" else "")
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["check", str(tmp_path / "c.yaml"), f"{key}={'x' * 5000}.keras"])
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2
    assert "expected the name of a file, found one of 5,0" in line and len(line) < 200


RUN, GIF, TMP = "<run>", "<gif>", "<tmp>"
MISTAKES: dict[str, tuple[list[str], str]] = {
    "no such command": (["evall", RUN], "there is no command 'evall'; did you mean 'eval'?"),
    "no such option": (
        ["eval", RUN, "--episode-count", "3"],
        "unrecognized arguments: --episode-count",
    ),
    "no episodes": (
        ["eval", RUN, "--episodes", "0"],
        "expected a whole number of at least 1, found '0'",
    ),
    "episodes in words": (["eval", RUN, "--episodes", "ten"], "at least 1, found 'ten'"),
    "negative seed": (["eval", RUN, "--seed", "-1"], "from 0 to below 2**63, found '-1'"),
    "great seed": (["eval", RUN, "--seed", str(2**63)], "from 0 to below 2**63"),
    "no run": (["eval", TMP + "/gone"], "gone: expected a checkpoint or a run directory"),
    "empty run": (["eval", TMP], "no checkpoint_*.h5 here"),
    "foreign file": (["inspect", TMP + "/foreign"], "not a checkpoint of hpc_es"),
    "policy override": (
        ["eval", RUN, "policy.activation=relu"],
        "the policy itself cannot be changed",
    ),
    "second run": (["eval", RUN, TMP], "expected one run, or the directory of its repetitions"),
    "no override": (
        ["eval", RUN, "task.env_id"],
        "expected task.key=value or report.info=[key], found 'task.env_id'",
    ),
    "unknown override": (["eval", RUN, "task.env_idd=3"], "unknown key 'task.env_idd'"),
    "unknown environment": (
        ["eval", RUN, "task.env_id=CartPool-v1"],
        "did you mean 'CartPole-v1'?",
    ),
    "other environment": (
        ["eval", RUN, "task.env_id=Acrobot-v1"],
        "it has 26 parameters, but its config describes",
    ),
    "video suffix": (["eval", RUN, "--video", TMP + "/film.avi"], "expected .gif or .mp4"),
    "video folder": (["eval", RUN, "--video", TMP + "/no/film.gif"], "there is no directory"),
    "video format": (
        ["eval", RUN, "--video", TMP + "/film.mp4"],
        "pip install 'hpc_es[video]', or choose a .gif",
    ),
    "nothing to see": (
        ["eval", RUN, "--episodes", "1", "--video", GIF],
        "film.gif: tests.helpers.toys:Survival-v0 renders no images",
    ),
    "plot without output": (["plot", RUN], "the following arguments are required: -o/--output"),
    "plot of no run": (["plot", TMP, "-o", GIF], "hpc-es: "),
    "config of no file": (["check", TMP + "/gone.yaml"], "found no such file"),
    "config override": (
        ["check", TMP + "/toy.yaml", "algorithm.sigmaa=3"],
        "did you mean 'sigma'?",
    ),
    "export suffix": (["export", RUN, TMP + "/policy.h5"], "expected '.keras'"),
    "export folder": (["export", RUN, TMP + "/no/policy.keras"], "there is no directory"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_are_one_line_and_status_2(
    mistake: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    places = {RUN: str(run()), GIF: str(tmp_path / "film.gif"), TMP: str(tmp_path)}
    (tmp_path / "foreign").write_text("a letter")
    (tmp_path / "toy.yaml").write_text("task: {env_id: 'tests.helpers.toys:Survival-v0'}\n")
    hidden = dict.fromkeys(["imageio_ffmpeg"])
    actual = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else actual(name)
    )
    arguments, expected = MISTAKES[mistake]
    for name, position in places.items():
        arguments = [argument.replace(name, position) for argument in arguments]
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert left.value.code == 2
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1, captured.err
    assert captured.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "toy.yaml"]


def test_video_refuses_environments_without_images(tmp_path: Path, capsys: Any) -> None:
    path = run(env("Painted"))
    with pytest.raises(SystemExit) as left:
        cli.main(
            ["eval", str(path), "--video", str(tmp_path / "a.gif"), "task.env_kwargs.broken=true"]
        )
    assert left.value.code == 2
    assert (
        "a.gif: cannot be rendered here: RuntimeError: there is no screen"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_help_lists_every_command_and_every_command_has_help(capsys: Any) -> None:
    assert cli.run([]) == cli.run(["--help"]) == 0
    output = capsys.readouterr().out
    for name in ("check", "eval", "export", "inspect", "options", "program-table"):
        assert f"  {name:13}  {cli.summary(name)}" in output
        with pytest.raises(SystemExit) as left:
            cli.run([name, "--help"])
        assert left.value.code == 0
        help_text = capsys.readouterr().out
        assert f"usage: hpc-es {name} " in help_text and "%%" not in help_text


def test_python_m_hpc_es_runs_commands_without_tensorflow_and_mpi() -> None:
    done = python(["-m", "hpc_es", "--version"])
    assert (done.status, done.stdout) == (0, f"hpc_es {__version__}\n"), done
    done = python(["-m", "hpc_es", "inspect", "/nothing/here"])
    assert done.status == 2
    assert done.stderr.startswith("hpc-es: /nothing/here: expected"), done
    done = python(["-X", "importtime", "-m", "hpc_es", "eval", "/nothing/here"])
    assert not {"tensorflow", "mpi4py"} & set(re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE))


def test_results_of_a_directory_of_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3}
    found = []
    for name in ("a", "b", "deep/c"):
        config = {"seed": len(found), "task": task, "algorithm": {"kind": "cma_es"}}
        with hpc_es.train({**config, "stop": {"generations": 1}}, tmp_path / "runs" / name) as run:
            list(run)
        found.append(json.loads((tmp_path / "runs" / name / "result.json").read_text())["answer"])
    (tmp_path / "runs/tuned").mkdir()
    (tmp_path / "runs/tuned/trials.json").write_text("{}")
    capsys.readouterr()
    assert cli.run(["results", str(tmp_path / "runs"), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [Path(name).name for name in compared] == ["a", "b", "c"]
    assert [one["rows"][0]["answer"] for one in compared.values()] == found


def test_error_that_no_command_foresees_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's run may be damaged in a way that nobody thought of."""

    def fails(_: object) -> None:
        raise KeyError("\x1b[2J")

    monkeypatch.setattr("hpc_es.commands.runs.run_list", fails)
    monkeypatch.delenv("HPC_ES_TRACEBACK", raising=False)
    with pytest.raises(KeyError):  # of code of the user, as this test is: the traceback tells more
        cli.main(["list"])
    monkeypatch.setattr(cli, "is_of_user", lambda _: False)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["list"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hpc-es: KeyError: '\\x1b[2J' (") and "may be damaged" in line
    monkeypatch.setenv("HPC_ES_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["list"])
