"""Pictures, maps and videos of archives."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es.core.elites import Division, Elites
from hpc_es.core.errors import CheckpointError, UserError
from hpc_es.core.quantities import Quantities
from hpc_es.report.archive_plot import figure, growth, plot_archive
from hpc_es.report.archive_section import archive_sections
from hpc_es.report.archive_video import Film, _tiled, members_in_grid
from hpc_es.storage.members import read_archive, read_member, write_members

NONE = np.zeros((0, 2))


def archive(run: Path, measures: Any, cells: Any, shape: Any, goal: Any = "minimise") -> Path:
    """A run with an archive of members whose values are 0, 1, 2, ..."""
    measures, count = np.array(measures, np.float64), len(measures)
    names = [f"m{number}" for number in range(measures.shape[1])]
    ends = np.zeros(len(names)), np.ones(len(names))
    size, centres = (int(np.prod(shape)), NONE) if shape else (count, measures)
    division = Division(*ends, size, np.array(shape, np.int64), centres)
    sign = -1 if goal == "minimise" else 1
    columns = {"return_": sign * np.arange(count, dtype=float), "measures": measures}
    made = np.arange(count), np.zeros(count, np.int64)
    elites = Elites(np.ones((count, 3)), *made, columns, np.array(cells), division)
    quantities = Quantities(measures=dict.fromkeys(names, (0.0, 1.0)))
    parameters = [{"x": 0.5, "y": number} for number in range(count)]
    run.mkdir(exist_ok=True)
    write_members(run, "cells", elites, quantities=quantities, parameters=parameters, goal=goal)
    return run


def grid(run: Path, goal: Any = "minimise") -> Path:
    measures = [[0.1, 0.1], [0.9, 0.1], [0.1, 0.9]]
    return archive(run, measures, [[0, 0], [3, 0], [0, 4]], [4, 5], goal)


def test_heat_map_has_the_value_of_each_filled_cell(tmp_path: Path) -> None:
    found = read_archive(grid(tmp_path / "run"))
    assert found.sign == -1 and found.values.tolist() == [0, 1, 2]
    ax = figure(found, {}, "t").axes[0]
    drawn = ax.collections[0].get_array()
    assert drawn is not None and drawn.shape == (5, 4)  # second measure upwards
    assert [drawn[0, 0], drawn[0, 3], drawn[4, 0]] == [0, 1, 2]
    assert np.isnan(np.ma.filled(drawn, np.nan)).sum() == 17
    # the best value, the lowest one, is as bright as the highest one of an archive that maximises
    colors = [
        figure(read_archive(grid(tmp_path / str(goal), goal)), {}, "t").axes[0].collections[0]
        for goal in ("minimise", "maximise")
    ]
    assert colors[0].cmap(0.0) == colors[1].cmap(1.0)


def test_nearest_member_is_that_of_measures_with_equal_ranges(tmp_path: Path) -> None:
    run = archive(tmp_path / "run", [[0, 0], [1, 0.001], [0, 0.002]], [[0], [1], [2]], [])
    # 0.4 and a half of the range away from the second member, 0.6 and nothing from the third
    assert read_member(run, "measures=0.6,0.002").name == "g2j0"


def test_more_measures_are_parallel_axes(tmp_path: Path) -> None:
    run = archive(tmp_path / "run", np.eye(3) * 0.5, [[0], [1], [2]], [])
    ax = figure(read_archive(run), {}, "t").axes[0]
    (lines,) = ax.collections
    segments = lines.get_segments()  # type: ignore[attr-defined]
    assert sorted(segment[:, 1].tolist() for segment in segments) == [
        [0, 0, 0.5],
        [0, 0.5, 0],
        [0.5, 0, 0],
    ]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [
        f"m{number}\n0 to 1" for number in range(3)
    ]


@pytest.mark.parametrize("measures", [1, 2, 3])
def test_picture_is_written_for_any_number_of_measures(measures: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cells = [[number] for number in range(20)]
    run = archive(tmp_path / "run", rng.random((20, measures)), cells, [])
    rows = [{"generation": 0, "episodes_total": 5, "coverage": 0.5, "qd_score": 2.0}] * 2
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plot_archive(run, tmp_path / "a.png")
    plot_archive(run, tmp_path / "b.png")
    picture = (tmp_path / "a.png").read_bytes()
    assert picture[:4] == b"\x89PNG" and picture == (tmp_path / "b.png").read_bytes()
    with pytest.raises(UserError, match=r"expected one of \.png"):
        plot_archive(run, tmp_path / "a.jpg")


def test_empty_archive_is_drawn(tmp_path: Path) -> None:
    run = archive(tmp_path / "run", np.zeros((0, 2)), np.zeros((0, 2), np.int64), [4, 5])
    plot_archive(run, tmp_path / "a.png")
    assert len(archive_sections([run], ["run"])) == 1


def test_rows_that_no_picture_can_show_are_left_out(tmp_path: Path) -> None:
    rows = (
        '"episodes_total": 5, "qd_score": 2.5, "coverage": 0.5',
        '"episodes_total": "x", "qd_score": 2',
        f'"episodes_total": 6, "qd_score": 1{"0" * 400}, "coverage": -1e308',
        '"episodes_total": 7, "qd_score": NaN, "coverage": null',
    )
    run = grid(tmp_path)
    (run / "metrics.jsonl").write_text("".join(f"{{{row}}}\n" for row in rows))
    found = {name: [axis.tolist() for axis in points] for name, points in growth(run).items()}
    assert found == {"qd_score": [[5], [2.5]], "coverage": [[5], [0.5]]}


@pytest.mark.parametrize("shape", [[-2, -2], [-1, -4], [0, 5]])
def test_grid_of_no_cells_is_damage(shape: list[int], tmp_path: Path) -> None:
    file = grid(tmp_path) / "archive.npz"
    arrays = dict(np.load(file))
    arrays["cells_shape"], arrays["cells_count"] = np.array(shape), np.array(np.prod(shape))
    np.savez(file, **arrays)
    with pytest.raises(CheckpointError, match="its cells are not in a grid of"):
        read_archive(tmp_path)
    members = [name for name in arrays if len(arrays[name].shape) and len(arrays[name]) == 3]
    np.savez(file, **{**arrays, **{name: arrays[name][:0] for name in members}})
    with pytest.raises(CheckpointError, match="its cells are not in a grid of"):
        read_archive(tmp_path)


def test_run_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"found no archive\.npz"):
        plot_archive(tmp_path, tmp_path / "a.png")


def test_report_has_the_parameters_of_each_member(tmp_path: Path) -> None:
    runs = [grid(tmp_path / "run"), tmp_path / "other"]
    (section,) = archive_sections(runs, ["run </script>", "other"])
    (shown,) = section.content
    assert not isinstance(shown, str)
    script = next(item for item in shown.iter("script"))
    data = json.loads(script.text or "")
    assert data["heads"] == ["x", "y", "value", "m0", "m1"]
    # the best member first
    assert data["members"] == ["g0j0", "g1j0", "g2j0"]
    assert data["rows"][1] == ["0.5", "1", "1", "0.9", "0.1"]
    assert data["cells"] == [[0, 0], [3, 0], [0, 4]] and data["sign"] == -1
    assert "</script>" not in (script.text or "")


def test_command_for_a_member_has_the_run_as_one_word(tmp_path: Path) -> None:
    (section,) = archive_sections([grid(tmp_path / "a; touch b")], ["run"])
    (shown,) = section.content
    assert not isinstance(shown, str)
    data = json.loads(next(item for item in shown.iter("script")).text or "")
    words = ["hpc-es", "export", str(tmp_path / "a; touch b"), "member.json", "--member"]
    assert shlex.split(data["command"]) == words


def test_members_have_no_other_names_than_of_a_generation_and_a_job(tmp_path: Path) -> None:
    """Names reach commands that are copied into a shell."""
    run = grid(tmp_path / "run")
    with np.load(run / "archive.npz") as file:
        arrays = {name: file[name] for name in file}
    np.savez(
        run / "archive.npz", **{**arrays, "member": np.array(["g0j0", "g1j0;touch b", "g2j0"])}
    )
    with pytest.raises(CheckpointError, match="the names are no names of members"):
        read_archive(run)


def test_damaged_archive_is_left_out_of_a_report(tmp_path: Path) -> None:
    run = grid(tmp_path / "run")
    (run / "archive.npz").write_bytes((run / "archive.npz").read_bytes()[:300])
    assert archive_sections([run], ["run"]) == []


# Videos.


def test_grid_of_a_video_has_the_members_where_their_measures_are(tmp_path: Path) -> None:
    measures = [[0.1, 0.1], [0.24, 0.24], [0.9, 0.9], [0.6, 0.1]]
    found = read_archive(archive(tmp_path / "run", measures, [[0, 0]] * 4, [2, 2]))
    # the second one is nearer to the middle of the lower left quarter
    assert members_in_grid(found, 2, 2) == [None, "g2j0", "g1j0", "g3j0"]


def test_episodes_beside_each_other_stay_at_their_last_frame() -> None:
    one, two = (np.full((4, 6, 3), value, np.uint8) for value in (1, 2))
    frames = list(_tiled([[one, two], [one], [], []], 2))
    assert [frame.shape for frame in frames] == [(12, 16, 3)] * 2
    assert [[frame[0, 0, 0], frame[0, 8, 0], frame[6, 0, 0]] for frame in frames] == [
        [1, 1, 32],
        [2, 1, 32],
    ]


def test_frames_of_an_episode_are_kept_within_bytes() -> None:
    images = np.random.default_rng(1).integers(0, 256, (4, 8, 6, 3), np.uint8)
    images[2] = images[1]
    film = Film(1_000)
    assert all(map(film.add, images)) and film.bytes < 600
    assert (np.stack([*film]) == images).all() and (np.stack([*film]) == images).all()
    film = Film(400)  # two frames of noise, of 144 bytes each, and one that equals the second
    assert [film.add(image) for image in images] == [True, True, True, False]
    assert (np.stack([*film]) == images[:3]).all()


def test_page_draws_maps(tmp_path: Path) -> None:
    """The script of the page finds the figures by their class."""
    (section,) = archive_sections([grid(tmp_path / "run")], ["run"])
    (shown,) = section.content
    assert not isinstance(shown, str)
    script = Path(__file__).parents[2] / "hpc_es/report/assets/page.js"
    assert f'"figure.{shown.get("class")}"' in script.read_text()
    keys = set(re.findall(r"const \{ ([\w, ]+) \} = this\.data", script.read_text()))
    used = {name.strip() for names in keys for name in names.split(",")}
    data = json.loads(next(item for item in shown.iter("script")).text or "")
    assert used <= set(data)


def test_grid_with_more_cells_than_a_picture_can_show_is_drawn_as_points(tmp_path: Path) -> None:
    found = read_archive(
        archive(tmp_path, [[0.1, 0.2], [0.3, 0.4]], [[0, 1], [2, 3]], [9999, 9999])
    )
    drawn = figure(found, {}, "t").axes[0].collections[0]
    assert np.asarray(drawn.get_offsets()).tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_first_axes_of_many_measures_are_drawn_and_the_title_says_so(tmp_path: Path) -> None:
    found = read_archive(archive(tmp_path, [[0.5] * 6000], [[0]], []))
    ax = figure(found, {}, "t").axes[0]
    assert len(ax.get_xticks()) == 40
    assert ax.get_title() == "the first 40 of 6,000 measures"


def test_table_of_an_archive_without_end_is_left_out_of_the_map(tmp_path: Path) -> None:
    run = grid(tmp_path / "run")
    with (run / "archive.csv").open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    (section,) = archive_sections([run], ["run"])
    (figure_element,) = section.content
    assert not isinstance(figure_element, str)
    data = json.loads(str(next(figure_element.iter("script")).text))
    assert data["rows"] == [] and len(data["members"]) == 3


def test_rows_of_an_archive_that_are_longer_than_its_head_are_cut(tmp_path: Path) -> None:
    run = grid(tmp_path / "run")
    lines = (run / "archive.csv").read_text().splitlines()
    before = _rows_of_map(run)
    (run / "archive.csv").write_text("\n".join([lines[0], *(line + "," * 9 for line in lines[1:])]))
    assert before and _rows_of_map(run) == before


def _rows_of_map(run: Path) -> list[list[str]]:
    (section,) = archive_sections([run], ["run"])
    (figure_element,) = section.content
    assert not isinstance(figure_element, str)
    rows: list[list[str]] = json.loads(str(next(figure_element.iter("script")).text))["rows"]
    return rows
