"""`hpc-es report` and `hpc-es watch`: content, statistics, escaping, damaged runs, tunings,
and a browser.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es import cli
from hpc_es.commands.report import LARGEST, report_page
from hpc_es.core.errors import Failure, UserError
from hpc_es.core.vocabulary import Vocabulary
from hpc_es.report import run_sections
from hpc_es.report.group_sections import round_ticks
from hpc_es.report.page import Section, duration_text, element, number_text, page, table
from hpc_es.report.run_summary import RunSummary, read_run
from hpc_es.report.server import WatchServer
from hpc_es.report.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
)
from hpc_es.storage.line_logs import FailuresLog
from hpc_es.storage.metrics_log import read_metrics
from hpc_es.tuning.report import read_report
from hpc_es.tuning.report_sections import importance
from tests.helpers import runs
from tests.report.test_plot import make
from tests.tuning.test_report import tuning

HOSTILE = '</script><script>alert(1)</script> & "q" <img src=x onerror=alert(2)> \x1b[31m\u202e\u2066\u2028'
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Parsed(HTMLParser):
    """Tags, texts by section, tables as rows of texts, and the data of charts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, str] = {}
        self.scripts: list[tuple[Mapping[str, str | None], str]] = []
        self._open: list[str] = []
        self._section, self._table = "", ""
        self.feed(text)
        self.charts = [
            json.loads(code) for attributes, code in self.scripts if attributes.get("type")
        ]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.tags.append((tag, values))
        self._open.append(tag)
        if tag == "section":
            self._section = str(values["id"])
        elif tag == "div" and values.get("role") == "region":
            self._table = str(values["aria-label"])
        elif tag == "tr":
            self.tables.setdefault(self._table, []).append([])
        elif tag in {"td", "th"}:
            self.tables[self._table][-1].append("")
        elif tag == "small":
            self.handle_data(" ")
        elif tag == "script":
            self.scripts.append((values, ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            attributes, code = self.scripts[-1]
            self.scripts[-1] = (attributes, code + data)
        elif "style" not in self._open:
            self.texts[self._section] = self.texts.get(self._section, "") + data
            if {"td", "th"} & set(self._open):
                self.tables[self._table][-1][-1] += data


def parsed(*directories: Path) -> Parsed:
    return Parsed(report_page(directories))


def status(run: Path, state: str, **more: Any) -> Path:
    (run / "status.json").write_text(json.dumps({"status": state, "generation": 2, **more}))
    return run


def result(run: Path, score: float, **more: Any) -> Path:
    status(run, "finished")
    answer = {"kind": "centre", "value": score, "x": None, "standard_error": 0.5, "evaluations": 9}
    (run / "result.json").write_text(json.dumps({"goal": "maximise", "answer": answer, **more}))
    return run


def test_real_repetitions_are_reported_with_their_metrics(tmp_path: Path) -> None:
    done = runs.finished(
        0, tmp_path / "run", "repetitions=3", "stop.generations=3", "evaluation.interval=1"
    )
    page = parsed(tmp_path / "run")
    assert done.status == 0
    rows = {row[0]: row for row in page.tables["Runs"]}
    results = [
        json.loads((tmp_path / "run" / name / "result.json").read_text())
        for name in rows
        if name != "run"
    ]
    names = [f"repetition_000{number}" for number in range(3)]
    assert len(results) == 3
    for name, expected in zip(names, results, strict=True):
        assert rows[name][1] == "finished"
        assert expected["answer"]["value"] == expected["best_return"] >= expected["final_return"]
        assert rows[name][2].startswith(f"{number_text(expected['best_return'])} ±")
        assert rows[name][3:5] == ["3", f"{expected['timesteps']:,}"]
    measured = [read_metrics(tmp_path / "run" / name) for name in names]
    main = next(line for line in page.charts[0]["lines"] if line["style"] == "main")
    faint = [line for line in page.charts[0]["lines"] if line["style"] == "faint"]
    for line, metrics in zip(faint, measured, strict=True):
        final = next(
            one["final_return"] for one in results if line["name"].endswith(str(one["repetition"]))
        )
        expected_y = [
            float(f"{value:.6g}")
            for value in [*(row["evaluation_return_mean"] for row in metrics), final]
        ]
        assert line["points"]["timesteps"][1] == expected_y
    x, y, low, high = main["points"]["seconds"]
    assert len(x) == len(y) == len(low) == len(high) >= 1  # runs may hardly overlap in time
    assert all(lower <= middle <= upper for lower, middle, upper in zip(low, y, high, strict=True))
    assert sum(
        int(cell.rstrip(" %")) for cell in page.tables["Time by activity"][1][2:7]
    ) == pytest.approx(100, abs=3)
    assert "hpc_es" in page.texts["environment"] and "numpy" in page.texts["environment"]


def test_statistics_of_configurations_are_those_of_their_scores(tmp_path: Path) -> None:
    for index, score in enumerate([1, 2, 3, 4, 5, 6, 7, 80]):
        result(make(tmp_path / f"a{index}", [1, 2], seed=index), float(score))
    for index, score in enumerate([5, 6, 7]):
        config = {"algorithm": {"kind": "es", "sigma": 0.2}}
        result(make(tmp_path / f"b{index}", [1, 2], seed=index, **config), float(score))
    _, first, second = parsed(tmp_path).tables["Comparison of return per episode"]
    # (3 + 4 + 5 + 6) / 4
    assert first[:4] == ["sigma 0.1 (8 runs)", "8", "4.5", "4.5"]
    assert second[:4] == ["sigma 0.2 (3 runs)", "3", "6", "6"]
    # 5 beats 1 to 4 and ties with 5: 4.5 of 8; 6: 5.5; 7: 6.5; together 16.5 of 24
    assert second[-1].startswith("0.69 (")
    low, high = (float(number) for number in re.findall(r"\d\.\d+", second[-1])[1:])
    assert 0 <= low < 16.5 / 24 < high <= 1


def test_copies_of_a_run_are_one_run_in_statistics(tmp_path: Path) -> None:
    """Three copies had an interval of width 0."""
    for name in ("a", "b", "c"):
        result(make(tmp_path / name, [1, 2, 3], seed=1), 3.0)
    page = parsed(tmp_path)
    assert "comparison" not in page.texts
    assert "1run" in page.texts["summary"] and "2copies left out" in page.texts["summary"]
    assert [row[0] for row in page.tables["Runs"][1:]] == ["a", "b (copy)", "c (copy)"]
    for index, score in enumerate((4.0, 5.0)):
        result(make(tmp_path / f"other_{index}", [1, 2, index], seed=index + 2), score)
    row = parsed(tmp_path).tables["Comparison of return per episode"][1]
    assert row[:4] == ["demo (3 runs)", "3", "4", "4"]  # of 3, 4, 5


def test_different_tasks_are_neither_compared_nor_in_one_chart(tmp_path: Path) -> None:
    for index, task in enumerate(("CartPole-v1", "Pendulum-v1")):
        for seed in range(2):
            run = make(
                tmp_path / f"{task}_{seed}",
                [1, 2, seed],
                seed=seed,
                task={"env_id": task},
                name=task,
            )
            result(run, 10.0 * index + seed)
    page = parsed(tmp_path)
    assert len(page.charts) == 2 and {
        len({line["group"] for line in chart["lines"]}) for chart in page.charts
    } == {1}
    tables = [
        page.tables[f"Comparison of return per episode: {task}"]
        for task in ("CartPole-v1", "Pendulum-v1")
    ]
    assert [len(table) for table in tables] == [2, 2] and "probability" not in str(tables)
    assert "best:" not in page.texts["summary"]


def test_interquartile_mean_and_probability_of_improvement() -> None:
    assert interquartile_mean(np.array([8.0, 1, 2, 3, 4, 5, 6, 7])) == 4.5
    assert interquartile_mean(np.array([3.0, 1, 5])) == 3  # floor(3 / 4) = 0 scores are left out
    assert (
        probability_of_improvement(np.array([1.0, 2]), np.array([2.0, 3])) == (1 + 1 + 0.5 + 1) / 4
    )


def test_bootstrap_interval_is_reproducible_and_needs_three_runs() -> None:
    scores = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    interval = bootstrap_interval(interquartile_mean, scores)
    assert interval == bootstrap_interval(interquartile_mean, scores)
    assert interval is not None and 1 < interval[0] < 5.5 < interval[1] < 10
    assert bootstrap_interval(interquartile_mean, [4.0] * 5) == (4, 4)
    assert bootstrap_interval(interquartile_mean, [1.0, 2]) is None


def test_lower_values_of_an_objective_are_better(tmp_path: Path) -> None:
    task = {"kind": "function", "goal": "minimise"}
    for name, sigma, value in (("a", 0.1, 3.0), ("b", 0.1, 4.0), ("c", 0.2, 1.0), ("d", 0.2, 2.0)):
        run = make(tmp_path / name, [1], seed=ord(name), task=task, algorithm={"sigma": sigma})
        row = {
            "generation": 0,
            "best_value": value,
            "timesteps_total": 5,
            "seconds_total": 1.0,
            "episodes_total": 5,
        }
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        status(run, "finished")
    page = parsed(tmp_path)
    assert page.tables["Comparison of best value"][2][-1] == "1.00"
    assert "lower is better" in page.texts["curves"]


def test_failed_killed_and_interrupted_runs_need_attention(tmp_path: Path) -> None:
    failed = status(make(tmp_path / "failed", [1, 2]), "failed", reason="every job failed")
    FailuresLog(failed, keep=False).add(
        "[rank 3] generation 0: job 7",
        Failure("KeyError: 'x'", "KeyError at f.py:3", "Traceback\n  f"),
    )
    status(
        make(tmp_path / "killed", [1], algorithm={"kind": "ars"}), "running", pid=2**22 + 1, host=""
    )
    status(
        make(tmp_path / "stopped", [1], algorithm={"kind": "pgpe"}),
        "interrupted",
        reason="a signal",
    )
    page = parsed(tmp_path)
    summary = page.texts["summary"]
    assert "failed failed: every job failed. The same command resumes the run." in summary
    assert "interrupted stopped: a signal" in summary
    assert {row[0]: row[1] for row in page.tables["Runs"]}["failed"] == "failed"
    assert "KeyError at f.py:3 in failed" in page.texts["failures"]
    assert (
        "[rank 3] generation 0: job 7" in page.texts["failures"]
        and "Traceback\n  f" in page.texts["failures"]
    )


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    status(
        make(tmp_path / "a", [1], algorithm={"kind": "es", "sigma": 0.1}, stop={"timesteps": 5}),
        "finished",
    )
    status(
        make(tmp_path / "b", [1], algorithm={"kind": "ars", "step": 2}, stop={"timesteps": 5}),
        "finished",
    )
    tables = parsed(tmp_path).tables
    assert [row[0] for row in tables["Settings that differ"]] == ["key", "algorithm.kind"]
    partial = tables["Settings that only some of the kinds have"]
    assert [row[0] for row in partial[1:]] == ["algorithm.sigma", "algorithm.step"]
    assert partial[1][1:] == ["0.1", "–"]


def test_texts_of_runs_are_escaped_and_only_the_bundled_scripts_may_run(tmp_path: Path) -> None:
    run = make(tmp_path / "<b>dir", [1, 2], name=HOSTILE, policy={"kind": HOSTILE})
    status(run, "failed", reason=HOSTILE)
    (run / "log.txt").write_text(HOSTILE)
    FailuresLog(run, keep=False).add(HOSTILE, Failure(HOSTILE, HOSTILE, HOSTILE))
    text = report_page([tmp_path], f"\r{HOSTILE}")
    page = Parsed(text)
    assert not [tag for tag, _ in page.tags if tag in {"img", "b"}]
    assert not set("\x1b\u202e\u2066\u2028\r") & {*text} and "\\u202e" not in text
    code = [code for attributes, code in page.scripts if not attributes.get("type")]
    assert len(code) == 2 and not any("alert" in one for one in code)
    policy = next(
        values["content"] for tag, values in page.tags if tag == "meta" and values.get("http-equiv")
    )
    assert policy is not None and "default-src 'none'" in policy and policy.count("'sha256-") == 2
    assert (
        "connect-src" not in policy
        and "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    )
    assert re.sub("[\x1b\u202e\u2066\u2028]", "\ufffd", HOSTILE) in page.texts["failures"]


def test_page_refers_to_no_other_file(tmp_path: Path) -> None:
    status(make(tmp_path / "a", [1, 2]), "finished")
    page = parsed(tmp_path)
    targets = [
        values.get(name) for _, values in page.tags for name in ("src", "href") if values.get(name)
    ]
    assert targets and all(str(target).startswith(("#", "data:")) for target in targets)
    anchors = {values.get("id") for _, values in page.tags}
    assert all(str(target)[1:] in anchors for target in targets)
    style = re.search(r"<style>(.*?)</style>", report_page([tmp_path]), re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("config.yaml", "a: [1", "a: "),
        ("config.yaml", "- 1\n", "found list"),
        ("metrics.jsonl", "{}\nnonsense\n{}\n", "line 2: expected a JSON object"),
        ("result.json", "[1]", "result.json: expected a JSON object"),
        ("result.json", "{", "Expecting property name"),
        ("status.json", "{", ""),
    ],
)
def test_damaged_file_is_a_note_in_the_page(
    tmp_path: Path, name: str, text: str, note: str
) -> None:
    run = result(make(tmp_path / "a", [1, 2]), 3.0)
    result(make(tmp_path / "b", [1, 2], seed=2), 3.0)
    (run / name).write_text(text)
    page = parsed(tmp_path)
    rows = {row[0]: row for row in page.tables["Runs"][1:]}
    assert rows["b"][2].startswith("3 ±")
    assert rows["a"][1] == ("unreadable" if name == "status.json" else "finished")
    assert note in page.texts["summary"]


def test_run_without_metrics_is_in_the_table_only(tmp_path: Path) -> None:
    status(make(tmp_path / "a", []), "failed", reason="no such module")
    page = parsed(tmp_path)
    assert page.tables["Runs"][1][:3] == ["a", "failed", "–"]
    assert "curves" not in page.texts and not read_run(tmp_path / "a").notes


def test_pictures_and_videos_of_a_run_are_included_up_to_a_limit(tmp_path: Path) -> None:
    run = status(make(tmp_path / "a", [1]), "finished")
    (run / "walk.gif").write_bytes(b"GIF89a")
    (run / "walk.mp4").write_bytes(b"\0" * 4_000_000)
    (run / "curve.png").write_bytes(b"PNG")
    page = parsed(run)
    images = [values for tag, values in page.tags if tag in {"img", "video"}]
    assert [values["src"] for values in images] == ["data:image/gif;base64,R0lGODlh"]
    assert images[0]["alt"] == "a: walk.gif"
    assert "walk.mp4 is left out" in page.texts["best"]


@pytest.mark.long
def test_page_of_many_long_runs_is_below_the_limit(tmp_path: Path) -> None:
    for index in range(40):
        run = status(
            make(tmp_path / str(index), [1], seed=index, algorithm={"sigma": index // 4 / 10}),
            "finished",
        )
        rows = ({"generation": g, "return_mean": g * 1.234567, "return_std": 1.0, "evaluation_return_mean": g % 7 * 1.1,
                 "timesteps_total": 1000 * g + 1, "seconds_total": g + 1.0} for g in range(1000))  # fmt: skip
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(report_page([tmp_path]).encode()) < LARGEST / 2


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs: expected a directory, found none"):
        cli.run(["report", str(tmp_path / "runs")])
    with pytest.raises(UserError, match=r"expected a run or a tuning, found none"):
        cli.run(["report", str(tmp_path)])
    with pytest.raises(UserError, match=r"page.pdf: expected a file name that ends in \.html"):
        cli.run(["report", str(tmp_path), "-o", str(tmp_path / "page.pdf")])


def test_file_is_written_with_its_size(tmp_path: Path, capsys: Any) -> None:
    status(make(tmp_path / "a", [1, 2]), "finished")
    assert (
        cli.run(["report", str(tmp_path), "-o", str(tmp_path / "page.html"), "--title", "Night"])
        == 0
    )
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert re.search(r"page\.html written \(0\.1 MB\)", capsys.readouterr().err)


# Tunings.


def test_importance_is_the_share_of_one_hyperparameter() -> None:
    objectives = [1.0, 2.0, 3.0, 4.0] * 2
    assert importance([1, 2, 3, 4] * 2, objectives) == 1
    assert importance([1, 1, 1, 1, 2, 2, 2, 2], objectives) == 0
    # ranks 0, 1, 2, 3: sum of squares 5, within [0, 1] and [2, 3] 1, so (5 - 1 - 1 * 1 / 2) / 5
    assert importance(["a", "a", "b", "b"], [1.0, 2, 3, 4]) == pytest.approx(0.7)
    assert importance([1, 2], [1.0, 2.0]) is None  # every class has one trial
    assert importance([1, 1, 2, 2], [3.0] * 4) is None


def test_importance_of_a_continuous_hyperparameter_uses_classes() -> None:
    values = np.linspace(0, 1, 40).tolist()
    assert (importance(values, values) or 0) > 0.9
    assert (importance(values, np.random.default_rng(0).random(40).tolist()) or 0) < 0.2


@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_tuning_has_trials_and_a_line_for_each_complete_one(tmp_path: Path, search: str) -> None:
    (tmp_path / "tune").mkdir()
    directory = tuning(tmp_path / "tune", search)
    page = parsed(directory)
    rows = {row[0]: row for row in page.tables["Trials"]}
    assert rows["4"][1:3] == ["complete", "7.25"]
    if search == "grid":
        assert rows["5"][1:3] == ["missing", "–"]
    else:
        assert "5" not in rows, "it has no hyperparameters yet"
    paths = [
        values for tag, values in page.tags if tag == "path" and values.get("class") == "trial"
    ]
    assert (
        len(paths)
        == len([row for row in read_report(directory).rows if row["state"] == "complete"])
        == 2
    )
    assert (
        "Trial 4: 7.25; algorithm.optimizer.learning_rate 0.01, policy.hidden_dims [4, 4]"
        in page.texts["space"]
    )
    assert "all episodes failed" in page.texts["failed-trials"]


def test_runs_and_tunings_in_one_directory(tmp_path: Path) -> None:
    status(make(tmp_path / "a", [1, 2]), "finished")
    (tmp_path / "tune").mkdir()
    tuning(tmp_path / "tune")
    page = parsed(tmp_path)
    assert {"runs", "tuning-0", "trials-0"} <= set(page.texts)
    ids = [values["id"] for _, values in page.tags if values.get("id")]
    assert len(ids) == len(set(ids))


# Blocks.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (3.21, "3.2 s"),
        (59.6, "60 s"),
        (125, "2 min 5 s"),
        (7200, "2 h"),
        (90061, "1 d 1 h"),
    ],
)
def test_duration_text(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (12345, "12,345"),
        (0.00012345, "0.0001234"),
        (1234.5, "1,234"),
    ],
)
def test_number_text(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_element_can_be_in_two_places() -> None:
    link = element("a", "x")
    both = page(
        "t",
        "s",
        [Section("one", "One", [element("p", link, "first"), element("p", link, "second")])],
    )
    assert "<p><a>x</a>first</p><p><a>x</a>second</p>" in both


def test_tables_name_their_headings_for_screen_readers() -> None:
    block = Parsed(
        page(
            "t",
            "s",
            [Section("one", "One", [table("Numbers", ["name", "n"], [["a", "1"]], sortable=True)])],
        )
    )
    scopes = [values.get("scope") for tag, values in block.tags if tag == "th"]
    assert scopes == ["col", "col", "row"]
    assert ("caption", {"class": "hidden"}) in block.tags


# The server.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    status(make(tmp_path / "a", [1, 2]), "running")
    with WatchServer(
        lambda version: report_page([tmp_path], None, 15, version), [tmp_path]
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_watched_page_has_a_new_version_when_a_file_changes(
    server: WatchServer, tmp_path: Path
) -> None:
    first, version = fetch(server.url), fetch(f"{server.url}version")
    assert f'data-version="{version}"' in first and "connect-src 'self'" in first
    assert fetch(f"{server.url}version") == version
    (tmp_path / "a" / "status.json").write_text('{"status": "finished", "generation": 99}')
    assert fetch(f"{server.url}version") != version
    assert "finished" in fetch(server.url)


@pytest.mark.parametrize("path", ["", "index.html", "../etc/passwd", "TOKEN/other"])
def test_other_addresses_are_not_served(server: WatchServer, path: str) -> None:
    root = f"http://127.0.0.1:{server.server_address[1]}/"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(root + path.replace("TOKEN", server.token))


def test_port_in_use_is_refused(server: WatchServer) -> None:
    port = server.server_address[1]
    with pytest.raises(UserError, match=f"--port {port} cannot be used"):
        WatchServer(lambda version: version, [], port)
    assert server.server_address[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("options", [(), ("--text",)], ids=["page", "text"])
def test_watch_shows_the_runs_until_it_is_interrupted(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    status(make(tmp_path / "night", [1, 2]), "finished")
    command = [sys.executable, "-m", "hpc_es", "watch", str(tmp_path), "--interval", "1", *options]
    # a background job of a shell would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        limit = threading.Timer(60, process.kill)
        limit.start()
        if options:
            assert re.search(
                r"night +finished", "".join(process.stdout.readline() for _ in range(2))
            )
        else:
            assert "night" in fetch(process.stderr.readline().strip())
        process.send_signal(signal.SIGINT)
        assert process.wait() == (130 if options else 0)
        limit.cancel()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((-0.1837, -0.1808), [-0.1835, -0.183, -0.1825, -0.182, -0.1815, -0.181]),
        ((340.0, 510.0), [350, 400, 450, 500]),
        ((450.0, 550.0), [460, 480, 500, 520, 540]),
        ((-1.0, 1.0), [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_of_scores_are_round_and_differ(
    ends: tuple[float, float], expected: list[float]
) -> None:
    assert round_ticks(*ends) == expected
    assert len({number_text(tick) for tick in round_ticks(*ends)}) == len(expected)


def test_runs_of_a_model_count_evaluations(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1, 2], task={"kind": "model", "model": "line:make"})
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    scores = Vocabulary("score")
    more = {"time_environment_mean": 1.0}
    rows = [{**row, "episodes_total": row["timesteps_total"], **more} for row in rows]
    text = "".join(json.dumps(scores.public(row)) + "\n" for row in rows)
    (run / "metrics.jsonl").write_text(text)
    waiting = make(tmp_path / "waiting", [], task={"kind": "model", "model": "line:make"})
    for given in ([run], [run, waiting]):
        page = Parsed(report_page(given, "title"))
        assert {"evaluations", "evaluations/s"} <= set(page.tables["Runs"][0])
        assert not {"timesteps", "steps/s"} & set(page.tables["Runs"][0])
        assert f"{rows[-1]['timesteps_total']:,}" in page.tables["Runs"][1]
        assert "environment" not in page.texts["time"]


# In a browser.


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_charts_are_drawn_without_errors_in_chromium(tmp_path: Path) -> None:
    for index in range(3):
        result(
            make(tmp_path / "runs" / str(index), [1, 2, 4], seed=index, evaluate_every=1),
            float(index),
        )
    cli.run(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "page.html")])
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
    )
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [
        str(CHROMIUM),
        *options,
        profile,
        "--window-size=400,900",
        "--dump-dom",
        (tmp_path / "page.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    drawn = re.findall(r'data-drawn="(\d+)"', done.stdout)
    assert drawn == ["2"]  # evaluations and population; single runs are hidden
    assert re.search(r'<canvas width="\d{3}', done.stdout)
    assert "CONSOLE" not in done.stderr, done.stderr


def test_runs_that_cannot_be_shown_together_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them can be shown alone."""
    for name in ("a", "b", "c"):
        status(make(tmp_path / name, [1, 2], seed=ord(name)), "finished")
    real = run_sections.run_sections

    def refusing(runs: Sequence[RunSummary]) -> list[Section]:
        if {"a", "b"} <= {run.path.name for run in runs}:
            raise IndexError("list index out of range")
        return real(runs)

    monkeypatch.setattr(run_sections, "run_sections", refusing)
    page = parsed(tmp_path)
    assert f"{tmp_path / 'b'}: IndexError: list index" in page.texts["unreadable"]
    assert {"a", "c"} <= {row[0] for row in page.tables["Runs"]}
