"""Learning curves: which runs are one line, what is averaged, and what is said where nothing can be drawn."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpc_es.core.errors import RunError, UserError
from hpc_es.report.curves import average, evaluation, grouped, load, population
from hpc_es.report.plot import _repetitions, figure, plot
from hpc_es.storage.metrics_log import MetricsLog, Number


def make(path: Path, returns: Sequence[float | None], evaluate_every: int = 0, steps: int = 10, **config: Any) -> Path:
    """A run of `steps` timesteps and one second a generation."""
    path.mkdir(parents=True)
    resolved = {"name": "demo", "seed": 0, "algorithm": {"kind": "es", "sigma": 0.1}, **config}
    (path / "config.yaml").write_text(yaml.safe_dump(resolved))
    log = MetricsLog(path)
    for generation, value in enumerate(returns):
        evaluated = bool(evaluate_every) and (generation + 1) % evaluate_every == 0
        row: dict[str, Number] = {
            "generation": generation,
            "return_mean": value,
            "return_std": 1.0,
            "evaluation_return_mean": value * 2 if evaluated and value is not None else None,
            "timesteps_total": steps * (generation + 1),
            "seconds_total": generation + 1.0,
        }
        log.write(row)
    log.close()
    return path


def arrays(*values: list[float]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    return tuple(np.array(value, dtype=np.float64) for value in values)


def labels(*runs: Path) -> list[str]:
    return [group.label for group in grouped([load(run) for run in runs])]


def test_average_of_runs_of_different_lengths() -> None:  # N29: rows beyond the shortest run are all dropped
    first_x, first_y = arrays([10, 20], [0, 4])
    second_x, second_y = arrays([10, 20, 30, 40], [2, 8, 100, 100])
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert curve.x.tolist() == [10, 20]
    assert curve.mean.tolist() == [1, 6]
    # Standard deviations with n - 1 of (0, 2) and (4, 8): sqrt(2) and sqrt(8). N30: of the runs' means.
    np.testing.assert_allclose(curve.spread, [2**0.5, 8**0.5])


def test_average_interpolates_where_runs_were_measured_elsewhere() -> None:
    first_x, first_y = arrays([0, 10, 20], [0, 10, 20])
    second_x, second_y = arrays([5, 25], [0, 40])  # the line 2 x - 10
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert curve.x.tolist() == [5, 10, 20]  # from the last start to the first end
    assert curve.mean.tolist() == [2.5, 10, 25]  # of (5, 0), (10, 10), (20, 30)


def test_average_of_single_rows() -> None:
    first_x, first_y = arrays([10], [1])
    second_x, second_y = arrays([20, 30], [3, 5])
    curve = average([(first_x, first_y), (second_x, second_y)])
    assert (curve.x.tolist(), curve.mean.tolist()) == ([15], [2])


def test_runs_apart_in_seed_name_and_output_are_one_line(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], name="walker_s1", seed=1, output="a")
    second = make(tmp_path / "b", [2], name="walker_s2", seed=2, output="b")
    assert labels(first, second) == ["walker"]


def test_each_seed_may_begin_from_a_run_of_its_own(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], seed=1, policy={"kind": "mlp", "init_from": "runs/first-1"})
    second = make(tmp_path / "b", [2], seed=2, policy={"kind": "mlp", "init_from": "runs/first-2"})
    fresh = make(tmp_path / "c", [2], seed=3, policy={"kind": "mlp", "init_from": None})
    assert labels(first, second) == ["demo"]
    assert labels(first, second, fresh) == ["demo, policy.init_from True", "demo, policy.init_from False"]


def test_other_configurations_are_other_lines(tmp_path: Path) -> None:
    first = make(tmp_path / "a", [1], algorithm={"kind": "es", "sigma": 0.1})
    second = make(tmp_path / "b", [2], algorithm={"kind": "es", "sigma": 0.2})
    third = make(tmp_path / "c", [2], name="third", algorithm={"kind": "ga"})
    assert labels(first, second, third) == ["demo, algorithm.sigma 0.1", "demo, algorithm.sigma 0.2", "third"]


def test_without_a_name_the_directory_is_the_name(tmp_path: Path) -> None:
    assert labels(make(tmp_path / "folder", [1], name=None)) == ["folder"]


def test_single_run_is_drawn_as_measured(tmp_path: Path) -> None:
    (group,) = grouped([load(make(tmp_path / "a", [1, None, 3], evaluate_every=3))])
    curve = population(group, "timesteps")
    assert (curve.x.tolist(), curve.mean.tolist(), curve.spread.tolist()) == ([10, 30], [1, 3], [1, 1])
    theta = evaluation(group, "seconds")  # N31: x and y of the same rows
    assert theta is not None
    assert (theta.x.tolist(), theta.mean.tolist()) == ([3], [6])


def test_the_legend_tells_how_many_seeds_and_what_each_band_is(tmp_path: Path) -> None:
    runs = [make(tmp_path / str(seed), [1, 2], seed=seed, evaluate_every=2 * (seed != 3)) for seed in (1, 2, 3)]
    key = ["evaluation of theta", "± its std over runs", "population mean", "± its std over runs"]
    assert legend(runs) == [*key, "demo (3 seeds, 2 with evaluations)"]
    copy = make(tmp_path / "copy", [1, 2], seed=1)
    assert legend([tmp_path / "1", copy])[-1] == "demo (2 runs, 1 seed, 1 with evaluations)"


def test_a_directory_of_repetitions_is_those_that_have_metrics(tmp_path: Path) -> None:
    """Repetitions have random numbers of their own, though their config has one seed."""
    for number in range(3):
        make(tmp_path / "reps" / f"repetition_{number:04d}", [1, 2] if number < 2 else [], repetitions=3)
    found = _repetitions(tmp_path / "reps")
    assert [run.name for run in found] == ["repetition_0000", "repetition_0001"]
    assert legend(found)[-1] == "demo (2 seeds)"
    plot([tmp_path / "reps"], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0


def legend(runs: list[Path]) -> list[str]:
    drawn = figure(grouped([load(run) for run in runs]), ("timesteps",), None)
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


def test_labels_and_units(tmp_path: Path) -> None:
    run = make(tmp_path / "a", [1, 2], steps=2_000_000, task={"kind": "episodes", "env_id": "Ant-v5"})
    drawn = figure(grouped([load(run)]), ("timesteps", "seconds"), None)
    assert [ax.get_xlabel() for ax in drawn.axes] == ["timesteps (million)", "wall time (seconds)"]
    assert drawn.axes[0].get_ylabel() == "return per episode"
    assert drawn.legends[0].get_title().get_text() == "Ant-v5"
    drawn.draw_without_rendering()
    ticks = [label.get_text() for label in drawn.axes[0].get_xticklabels()]
    assert {"0", "1", "2", "3", "4"} <= set(ticks)


@pytest.mark.parametrize("x", [None, "timesteps", "seconds"])
def test_png_is_1200_by_500(tmp_path: Path, x: Any) -> None:
    output = tmp_path / "new" / "curve.png"
    plot([make(tmp_path / "a", [1, 2, 3], evaluate_every=2)], output, x)
    head = output.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (1200, 500)
    assert [path.name for path in output.parent.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(("suffix", "magic"), [(".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_suffix_decides_and_bytes_repeat(tmp_path: Path, suffix: str, magic: bytes) -> None:
    run = make(tmp_path / "a", [1, 2], name=r"cost $\frac$")  # no formula, and not to be read as one
    once, again = tmp_path / f"once{suffix}", tmp_path / f"again{suffix}"
    plot([run], once)
    plot([run], again)
    assert once.read_bytes().startswith(magic)
    assert once.read_bytes() == again.read_bytes()
    assert b"CreationDate" not in once.read_bytes()


def test_ticks_are_round_in_their_unit(tmp_path: Path) -> None:
    drawn = figure(grouped([load(make(tmp_path / "a", [1.0] * 300))]), ("seconds",), None)
    drawn.draw_without_rendering()
    assert drawn.axes[0].get_xlabel() == "wall time (minutes)"
    assert {"0", "1", "2", "3", "4", "5"} == {label.get_text() for label in drawn.axes[0].get_xticklabels()} - {
        "6",
        "-1",
    }


def test_one_row_is_plotted(tmp_path: Path) -> None:
    runs = [make(tmp_path / str(seed), [1], seed=seed, evaluate_every=1) for seed in (1, 2)]
    plot(runs[:1], tmp_path / "one.png")
    plot(runs, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > 0


def test_a_run_given_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "a", [1, 2])
    monkeypatch.chdir(tmp_path)
    plot([run, Path("a"), Path("a/../a")], tmp_path / "twice.svg")
    plot([run], tmp_path / "once.svg")
    assert (tmp_path / "twice.svg").read_bytes() == (tmp_path / "once.svg").read_bytes()


def test_errors_of_the_user(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1])
    with pytest.raises(UserError, match=r"the suffix is '\.gif', expected one of \.png, \.pdf, \.svg"):
        plot([run], tmp_path / "x.gif")
    with pytest.raises(UserError, match="give at least one"):
        plot([], tmp_path / "x.png")
    with pytest.raises(UserError, match=r"nothing is not a run directory: it has no config\.yaml"):
        plot([tmp_path / "nothing"], tmp_path / "x.png")
    for name, returns in (("new", []), ("failed", [None])):
        with pytest.raises(UserError, match=rf"{name}/metrics\.jsonl has no metrics yet"):
            plot([make(tmp_path / name, returns)], tmp_path / "x.png")
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        plot([run], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_a_failed_write_leaves_the_old_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "plots" / "curve.png"
    output.parent.mkdir()
    output.write_bytes(b"old")

    def full(self: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(RunError, match=r"curve\.png: cannot be written: No space left"):
        plot([make(tmp_path / "a", [1])], output)
    assert output.read_bytes() == b"old"
    assert [path.name for path in output.parent.iterdir()] == ["curve.png"]


def test_no_pyplot_and_no_display(tmp_path: Path) -> None:
    run = make(tmp_path / "a", [1, 2])
    program = (
        "import sys; from pathlib import Path; from hpc_es.report.plot import plot\n"
        f"plot([Path({str(run)!r})], Path({str(tmp_path / 'x.png')!r}))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_users_settings_are_left_alone(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 33.0}):
        plot([make(tmp_path / "a", [1, 2])], tmp_path / "x.png")
        assert mpl.rcParams["font.size"] == 33.0
