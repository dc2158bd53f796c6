"""Progress of a run: plain lines, the log file, and the live display on a terminal."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from hpc_es.algorithms.common.metrics import STEP_SIZE
from hpc_es.config.schema import Stop
from hpc_es.core.declarations import Metric
from hpc_es.core.vocabulary import Vocabulary
from hpc_es.report import progress as module
from hpc_es.report.progress import (
    Progress,
    clock,
    fitting,
    number,
    on_terminal,
    seconds_left,
    split,
)
from hpc_es.storage.metrics_log import Number

COSTS = Vocabulary("value", "minimise")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "time", fake := Clock())
    return fake


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A function instead of a fixture: pytest's capture
    replaces stderr between a fixture and its test.
    """
    monkeypatch.setattr(sys, "stderr", fake := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    for name in ("CI", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return fake


def limits(
    generations: int | None = None, timesteps: int | None = None, seconds: float | None = None
) -> Stop:
    return Stop(generations=generations, timesteps=timesteps, seconds=seconds, target_return=None)


def row(generation: int, **more: Number) -> dict[str, Number]:
    return {
        "generation": generation,
        "return_mean": 10.0 * generation,
        "return_std": 2.5,
        "evaluation_episodes": 0,
        "timesteps_this_generation": 100,
        "timesteps_total": 100 * (generation + 1),
        "seconds_this_generation": 2.0,
        "seconds_total": 2.0 * (generation + 1),
        **more,
    }


def generations(text: str) -> list[int]:
    return [int(result) for result in re.findall(r"generation (\d+)", text)]


def test_progress_prints_a_line_per_second_and_first_last_and_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: Clock
) -> None:
    with Progress(tmp_path, limits()) as progress:
        progress.start({"name": "demo"})
        for generation in range(30):
            evaluated = generation == 3
            progress.update(
                row(generation, evaluation_episodes=5 * evaluated, evaluation_return_mean=1.0)
            )
            time.now += 0.125
        progress.finish("finished")
    out = capsys.readouterr().out
    # Rows come at 0, 1/8, 2/8 ... s: the first, the evaluation at 3/8 s, then 11/8, 19/8, 27/8 s,
    # and the last.
    assert generations(out) == [1, 4, 12, 20, 28, 30]
    assert out.endswith("finished\n")


def test_last_row_is_not_printed_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(tmp_path, limits())
    progress.update(row(0))
    progress.finish("finished")
    progress.close()
    assert generations(capsys.readouterr().out) == [1]


def test_progress_of_a_vector_search_has_best_value_and_step_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, limits(), vocabulary=COSTS, metrics=STEP_SIZE)
    progress.update(COSTS.public(row(0, best_value=0.0012345, sigma=0.25)))
    progress.close()
    assert "best value 0.001234  sigma 0.25" in capsys.readouterr().out


def test_progress_of_several_objectives_has_their_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, limits(), vocabulary=COSTS, objectives=("mass", "range"))
    progress.update(COSTS.public(row(0, objective_mass=1.5, objective_range=20.0)))
    progress.close()
    out = capsys.readouterr().out
    assert "mass 1.5  range 20" in out and "best value" not in out


def test_progress_with_constraints_has_violation_and_feasible_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, limits(), vocabulary=COSTS)
    for generation, (violation, share) in enumerate([(0.5, 0.0), (0.0, 0.25)]):
        shown = {"best_value": 2.0, "best_violation": violation, "feasible_share": share}
        progress.update(COSTS.public(row(generation, **shown)))
        progress.close()
    first, second = capsys.readouterr().out.splitlines()
    assert (
        "best value 2  violation 0.5  feasible 0%" in first
        and "best value 2  feasible 25%" in second
    )


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, ["generation 2", "return 10", "time a 90% b 10%", "elapsed 0:04", "left 0:06"]),
        (66, ["generation 2", "return 10", "time a 90% b 10%", "elapsed 0:04", "left 0:06"]),
        (65, ["generation 2", "return 10", "elapsed 0:04", "left 0:06"]),
        (34, ["generation 2", "return 10", "left 0:06"]),
        (33, ["generation 2", "return 10"]),
        (5, ["generation 2"]),
    ],
)
def test_line_on_a_terminal_is_not_longer_than_it_is_wide(
    columns: int | None, expected: list[str]
) -> None:
    """The whole line has 12 + 9 + 16 + 12 + 9 characters and four gaps of 2: 66."""
    entries = ["generation 2", "return 10", "time a 90% b 10%", "elapsed 0:04", "left 0:06"]
    assert fitting(entries, columns) == expected


@pytest.mark.parametrize(("goal", "sign"), [("minimise", -1), ("maximise", 1)])
def test_progress_of_an_objective_has_values_and_evaluations(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    goal: Literal["minimise", "maximise"],
    sign: int,
) -> None:
    words = Vocabulary("value", goal)
    progress = Progress(tmp_path, limits(generations=5), vocabulary=words, metrics=STEP_SIZE)
    progress.start({"name": "demo", "goal": goal, "best_evaluation": sign * -0.5})
    more = {
        "episodes_this_generation": 10,
        "episodes_total": 20,
        "best_value": sign * -0.25,
        "sigma": 0.5,
    }
    evaluation = {"evaluation_episodes": 1, "evaluation_return_mean": -2.0}
    shown = row(1, return_mean=-1.5, failed_episodes=3, **more, **evaluation)
    progress.update(words.public(shown))
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"name demo  goal {goal}"
    assert second == (
        f"generation 2 of 5  value {sign * -1.5:g} ± 2.5  best value {sign * -0.25:g}  sigma 0.5  "
        f"value of centre {sign * -2:g} (best {sign * -0.5:g})  evaluations 20  evaluations/s 5  "
        "failed evaluations 3  elapsed 0:04  left 0:06"
    )


def test_first_line_of_several_objectives_names_no_single_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objectives = ("mass", "deflection")
    progress = Progress(tmp_path, limits(generations=5), vocabulary=COSTS, objectives=objectives)
    progress.start({"name": "demo", "goal": "minimise", "params": 2})
    assert capsys.readouterr().out == "name demo  params 2\n"


def test_progress_line_has_the_expected_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, limits(generations=5))
    progress.start(
        {
            "name": "demo",
            "env": "CartPole-v1",
            "params": 58,
            "resumed": None,
            "best_evaluation": 480.0,
        }
    )
    progress.update(
        row(
            1,
            evaluation_episodes=2,
            evaluation_return_mean=470.25,
            steps_per_second=51234.5,
            time_environment_mean=1.5,
            time_policy_mean=0.5,
            failed_episodes=1,
        )
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first == "name demo  env CartPole-v1  params 58  best evaluation 480.0"
    assert second == (
        "generation 2 of 5  return 10 ± 2.5  evaluation 470.2 (best 480)  timesteps 200  steps/s 51234  "
        "time environment 75% policy 25% update 0% messages 0% idle 0%  failed episodes 1  elapsed 0:04  left 0:06"
    )


def test_line_of_a_model_has_scores_and_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = Vocabulary("score")
    progress = Progress(tmp_path, limits(), vocabulary=scores)
    evaluation = {"evaluation_episodes": 1, "evaluation_return_mean": 0.25}
    counts = {"episodes_this_generation": 10, "episodes_total": 20, "failed_episodes": 3}
    progress.update(scores.public(row(1, steps_per_second=5.0, **counts, **evaluation)))
    assert capsys.readouterr().out.rstrip() == (
        "generation 2  score 10 ± 2.5  score of centre 0.25 (best 0.25)  evaluations 20  evaluations/s 5  "
        "failed evaluations 3  elapsed 0:04"
    )


def test_missing_numbers_are_printed_as_dashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, limits())
    nothing: dict[str, Number] = dict.fromkeys(row(0))
    progress.update(
        {
            **nothing,
            "generation": 0,
            "evaluation_episodes": 1,
            "evaluation_return_mean": float("nan"),
        }
    )
    assert "return - ± -  timesteps -" in capsys.readouterr().out


def test_log_file_is_stamped_and_appended(tmp_path: Path) -> None:
    for session in ("first", "second"):
        progress = Progress(tmp_path, limits())
        progress.message(f"{session}\ntwo lines")
        progress.update(row(0))
        progress.close()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  "
    texts = [re.sub(f"^{stamp}", "", line) for line in lines]
    assert all(re.match(stamp, line) for line in lines)
    assert [text.split("  ")[0] for text in texts] == [
        "first", "two lines", "generation 1", "second", "two lines", "generation 1",
    ]  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_file", lambda path, mode: Path("/dev/full").open(mode))  # noqa: SIM115
    full = open("/dev/full", "w", buffering=1)  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(OSError, match="No space left"):
        full.write("a line\n")
    progress = Progress(tmp_path, limits())
    progress.update(row(0))
    progress.finish("finished")  # neither raises


def test_ascii_terminal_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Progress(tmp_path, limits()).update(row(1))
    assert b"return 10 ? 2.5" in raw.getvalue()


def test_live_display_shows_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = open_terminal(monkeypatch)
    with Progress(tmp_path, limits(generations=9)) as progress:
        progress.start({"name": "demo[bold]"})
        progress.update(row(3))
        progress.message("a [red]warning[/red]")
        progress.finish("finished")
    output = terminal.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)
    assert "4 of 9" in plain
    assert "a [red]warning[/red]" in plain  # as it stands, not as markup
    assert "[dim]" not in plain
    assert output.index("\x1b[?25l") < output.rindex("\x1b[?25h")  # the cursor is back
    assert generations(capsys.readouterr().out) == []
    assert generations((tmp_path / "log.txt").read_text()) == [4]


def test_error_restores_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with pytest.raises(ZeroDivisionError), Progress(tmp_path, limits()) as progress:
        progress.start({"name": "demo"})
        raise ZeroDivisionError
    assert terminal.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize("setting", ["TERM=dumb", "TERM=", "CI=true"])
def test_plain_lines_are_printed_without_a_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
) -> None:
    terminal = open_terminal(monkeypatch)
    assert on_terminal()
    monkeypatch.setenv(*setting.split("="))
    progress = Progress(tmp_path, limits())
    progress.start({"name": "demo"})
    progress.update(row(0))
    assert generations(capsys.readouterr().out) == [1]
    assert terminal.getvalue() == ""


def test_rich_is_imported_only_for_the_display(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from types import SimpleNamespace as N\n"
        "from hpc_es.report.progress import Progress\n"
        f"p = Progress(Path({str(tmp_path)!r}), N(generations=1, timesteps=None, episodes=None, seconds=None))\n"
        "p.start({'name': 'x'}); p.update({'generation': 0}); p.finish('')\n"
        "sys.exit(any(name.split('.')[0] in ('rich', 'matplotlib', 'pydantic') for name in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=False, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (limits(), None),
        (limits(generations=10), 16.0),  # 2 done, 8 of 2 s to go
        (limits(timesteps=500), 6.0),  # 200 done, 300 at 50 per second
        (limits(seconds=9.0), 5.0),  # 4 gone
        (limits(generations=10, timesteps=500, seconds=9.0), 5.0),  # whichever is first
        (limits(generations=1), 0.0),
    ],
)
def test_remaining_seconds_follow_from_the_speed(stop: Stop, expected: float | None) -> None:
    assert seconds_left(stop, [row(0), row(1)]) == expected


def test_remaining_seconds_ignore_the_speed_before_a_resume() -> None:
    slow_past = row(99, seconds_total=10_000.0)  # 100 s per generation on fewer ranks, now 2 s
    assert seconds_left(limits(generations=110), [slow_past]) == 20.0


def test_time_is_printed_as_percentages() -> None:
    times: dict[str, Number] = {
        "time_environment_mean": 8.1,
        "time_policy_mean": 0.9,
        "time_update_mean": 0.5,
    }
    times |= {"time_messages_mean": 0.3, "time_idle_mean": 0.2}
    assert split(times) == "environment 81% policy 9% update 5% messages 3% idle 2%"
    assert split({}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (12, "12"),
        (1.23456, "1.235"),
        (-1234.5, "-1234"),
        (2_500_000, "2.50M"),
        (-0.0, "0"),
    ],
)
def test_numbers_are_formatted(value: Number, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00"), (59.0, "0:59"), (61.0, "1:01"), (3723.0, "1:02:03")]
)
def test_durations_are_formatted_as_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_progress_of_a_program_search_has_best_reward_and_npe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 programs in 2 s; 1,000 - 200 are left, 50 per second."""
    declared = {
        "distinct_programs": Metric("distinct programs", short="distinct"),
        "token_entropy": Metric("entropy per token", short="entropy"),
    }
    progress = Progress(
        tmp_path,
        Stop(generations=None, timesteps=None, episodes=1000, seconds=None),
        metrics=declared,
    )
    numbers = {
        "episodes_this_generation": 100,
        "episodes_total": 200,
        "best_reward": 0.9777777,
        "solved": 0.0,
    }
    progress.update(row(1, **numbers))
    progress.update(
        row(2, **{**numbers, "solved": 1.0, "distinct_programs": 61.0, "token_entropy": 1.25})
    )
    progress.finish("finished")
    first, last, _ = capsys.readouterr().out.splitlines()
    assert (
        first == "generation 2  best reward 0.9778  NPE 200  programs/s 50  elapsed 0:04  left 0:16"
    )
    assert last.startswith(
        "generation 3  best reward 0.9778  correct program found  distinct 61  entropy 1.25  NPE 200"
    )


def test_progress_follows_the_nearest_limit() -> None:
    """Per generation of 2 s: 100 timesteps, 10 episodes; 60 episodes take 12 s,
    1,000 timesteps 18 s.
    """
    newest = row(0, episodes_this_generation=10, episodes_total=0)
    limited = Stop(generations=None, timesteps=1000, episodes=60, seconds=None)
    assert seconds_left(limited, [newest]) == 12.0
    nothing_new = {**newest, "episodes_this_generation": 0}
    assert (
        seconds_left(
            Stop(generations=None, timesteps=None, episodes=60, seconds=None), [nothing_new]
        )
        is None
    )


def test_metrics_that_are_not_known_yet_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = {"misranking": Metric("misranking", short="misranking")}
    progress = Progress(
        tmp_path,
        Stop(generations=None, timesteps=None, episodes=1000, seconds=None),
        metrics=declared,
    )
    numbers = {"best_reward": 0.5, "episodes_total": 200}
    progress.update(row(1, **numbers, misranking=float("nan")))
    progress.update(row(2, **numbers, misranking=0.25))
    progress.finish("finished")
    first, last, _ = capsys.readouterr().out.splitlines()
    assert "misranking" not in first and "misranking 0.25" in last
