"""The designs of functions and programs in a report: order, types, statistics, and a browser."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import subprocess
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml

from hpc_es import cli
from hpc_es.commands.report import report_page
from hpc_es.report import designs as designs_module
from hpc_es.report.designs import (
    Designs,
    TooManyError,
    correlations,
    rank_correlation,
    read_designs,
)
from hpc_es.storage.answers import Found
from hpc_es.storage.evaluations import each_evaluation

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PARAMETERS = {
    "width": {"low": 0.5, "high": 4},
    "layers": {"integer": True, "low": 1, "high": 8},
    "material": {"choices": ["steel", "</script>"]},
    "hollow": {"boolean": True},
}
ROWS = """generation,job,value,width,layers,material,hollow,sag
0,0,5.0,1.0,2,steel,false,-1.0
0,1,3.0,2.5,3,</script>,true,-0.5
0,2,nan,2.0,7,steel,true,nan
0,3,1.0,0.5,1,steel,true,0.25
1,0,4.0,1.5,4,steel,true,0.0
"""


def beam(run: Path, rows: str = ROWS) -> Path:
    """A run with failed, infeasible and given designs."""
    run.mkdir(parents=True)
    task = {
        "kind": "function",
        "function": "beam:weigh",
        "goal": "minimise",
        "parameters": PARAMETERS,
        "constraints": ["sag"],
        "initial_points": "known.csv",
    }
    config = {"name": "beam", "seed": 0, "algorithm": {"kind": "cma_es"}, "task": task}
    config["directory"] = str(run.parent)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run.parent / "known.csv").write_text("width,layers,material,hollow\n1.5,4,steel,true\n")
    (run / "evaluations.csv").write_text(rows)
    metrics = [
        {"generation": g, "timesteps_total": 4 + g, "seconds_total": 1 + g, "best_value": 3.0}
        for g in range(2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    return run


def read(run: Path) -> Designs:
    config = yaml.safe_load((run / "config.yaml").read_text())
    designs = read_designs([(run, config, Found("minimise"))])
    assert designs is not None
    return designs


def test_designs_are_typed_and_feasible_ones_come_first(tmp_path: Path) -> None:
    designs = read(beam(tmp_path / "run"))
    assert designs.parameters == tuple(PARAMETERS) and designs.quantities == ("sag",)
    assert [one.name for one in designs.successful] == ["g0j1", "g1j0", "g0j0", "g0j3"]
    assert [one.violation for one in designs.successful] == [0, 0, 0, 0.25]
    assert [one.name for one in designs.failed] == ["g0j2"]
    assert [one.is_initial for one in designs.successful] == [False, True, False, False]
    best = designs.successful[0].cells
    assert best == {
        "width": 2.5,
        "layers": 3,
        "material": "</script>",
        "hollow": True,
        "sag": -0.5,
    }


def test_tables_of_any_size_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a gigabyte that is a hole took five."""
    run = beam(tmp_path / "run")
    os.truncate(run / "evaluations.csv", 1 << 30)
    tracemalloc.start()
    with pytest.raises(ValueError, match="has a line of"):
        read(run)
    assert tracemalloc.get_traced_memory()[1] < 1 << 29
    tracemalloc.stop()
    run = beam(tmp_path / "other")
    monkeypatch.setattr(designs_module, "MOST_CELLS", 40)
    with pytest.raises(TooManyError, match="more than 40 numbers"):
        read(run)
    assert ": more than 40 numbers in evaluations.csv" in report_page([run])


def test_rank_correlation_is_that_of_spearman() -> None:
    """Ranks 0 to 7 against themselves with two neighbours exchanged: 1 - 6 * 2 / (8 * 63)."""
    first = np.array([1.0, 2, 3, 5, 8, 13, 21, 34])
    second = np.array([10.0, 20, 40, 30, 50, 60, 70, 80])
    assert rank_correlation(first, second) == pytest.approx(1 - 12 / 504)
    assert rank_correlation(first, -second) == pytest.approx(-1 + 12 / 504)
    assert rank_correlation(first, np.ones(8)) is None
    assert rank_correlation(first[:7], second[:7]) is None


def test_correlations_are_of_the_best_quarter(tmp_path: Path) -> None:
    """Of 40 designs the best ten grow with the width, the others fall with it."""
    lines = [ROWS.splitlines()[0]]
    lines += [f"0,{i},{i},{i if i < 10 else -i},2,steel,true,-1.0" for i in range(40)]
    found = correlations(read(beam(tmp_path / "run", "\n".join(lines) + "\n")))
    assert found == {"width": pytest.approx(1), "layers": None, "material": None, "hollow": None}


def test_report_lists_designs_and_offers_them_as_csv(tmp_path: Path) -> None:
    text = report_page([beam(tmp_path / "run")])
    assert "beam: 4 evaluations, 1 more have failed" in text
    assert text.count('class="failed"') == 1 and "initial point" in text
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', text)
    assert link is not None
    lines = base64.b64decode(link[1]).decode().splitlines()
    assert lines[0] == "run,generation,job,value,width,layers,material,hollow,sag"
    assert lines[1] == f"{tmp_path / 'run'},0,1,3.0,2.5,3,</script>,true,-0.5"
    assert len(lines) == 6


def test_failed_jobs_of_many_runs_are_one_line(tmp_path: Path) -> None:
    for count, lines in ((3, 3), (4, 1)):
        made = [beam(tmp_path / f"{count}" / f"run_{number}") for number in range(count)]
        for run in made:
            row = {"generation": 0, "timesteps_total": 5, "seconds_total": 1, "best_value": 3.0}
            row |= {"episodes_total": 5, "failed_episodes": 1, "failed_episodes_total": 1}
            (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            (run / "status.json").write_text(
                json.dumps({"status": "finished", "failed_episodes": 1})
            )
        text = report_page(made)
        alerts = text[
            text.index('class="alerts"') : text.index("</ul>", text.index('class="alerts"'))
        ]
        assert alerts.count("have failed jobs: 4 of 20 (20 %)") == (count == 4)
        assert alerts.count("1 failed jobs (20 % of all)") == (lines if count == 3 else 0)


def test_scatter_begins_with_a_parameter_that_varies(tmp_path: Path) -> None:
    """A column in which all designs are equal says nothing."""
    lines = [row.split(",") for row in ROWS.splitlines()]
    rows = "".join(
        ",".join([*row[:3], "width" if row[0] == "generation" else "1.0", *row[4:]]) + "\n"
        for row in lines
    )
    text = report_page([beam(tmp_path / "run", rows)])
    assert re.findall(r"<option[^>]* selected[^>]*>(\w+)", text) == ["layers", "value"]


def test_designs_of_somebody_else_are_no_formulas_in_the_csv(tmp_path: Path) -> None:
    rows = 'generation,job,value,width,layers,material,hollow,@x\n0,0,1,2,2,"=A(""1"")",true,+y\n'
    text = report_page([beam(tmp_path / "run", rows)])
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', text)
    assert link is not None
    head, first = csv.reader(base64.b64decode(link[1]).decode().splitlines())
    assert head[-1] == "'@x" and first[-3:] == ['\'=A("1")', "true", "'+y"]


# In a browser.

# Texts that are smaller than 11 pixels, and whether the page scrolls sideways.
MEASURE = """
addEventListener("load", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  let least = 99;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || parent.closest("script, style, title, .hidden")) continue;
    if (!parent.getClientRects().length) continue;
    const scale = parent.getScreenCTM ? parent.getScreenCTM().a : 1;
    least = Math.min(least, scale * parseFloat(getComputedStyle(parent).fontSize));
  }
  const box = document.querySelector('.brush input[data-end="high"]');
  box.value = "0.3";
  box.dispatchEvent(new Event("input"));
  const found = { least, wide: document.documentElement.scrollWidth - innerWidth, width: innerWidth,
    kept: document.querySelector(".kept").textContent, dots: document.querySelectorAll(".scatter circle").length };
  parent.document.body.dataset.found = JSON.stringify(found);
});
"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_report_is_readable_at_any_width(tmp_path: Path, width: int, theme: str) -> None:
    """Widths: 0.5 to 2.5; below 30 % of the axis are 0.5 and 1."""
    beam(tmp_path / "run")
    page = tmp_path / "page.html"
    assert cli.run(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    text = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page.read_text())
    page.write_text(text.replace("</head>", f"<script>{MEASURE}</script></head>"))
    frame = tmp_path / "frame.html"  # the window itself has a smallest width
    frame.write_text(f'<body><iframe src="page.html" width="{width}" height="900"></iframe>')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    options += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--hide-scrollbars", "--enable-logging=stderr"]
    options += ["--blink-settings=preferredColorScheme=0"] * (theme == "dark")
    command = [str(CHROMIUM), *options, "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    match = re.search(r'data-found="([^"]+)"', done.stdout)
    assert match is not None, done.stderr
    found = json.loads(match[1].replace("&quot;", '"'))
    assert found["least"] >= 11 and found["wide"] <= 0, found
    assert (found["width"], found["kept"], found["dots"]) == (width, "2", 4)
    assert "CONSOLE" not in done.stderr, done.stderr


def test_short_lines_below_a_wide_header_cost_their_bytes(tmp_path: Path) -> None:
    """2,000 lines of 200,000 columns would have 400 million cells; of the points as well."""
    run = beam(tmp_path / "run")
    names = ROWS.splitlines()[0] + "".join(f",more{number}" for number in range(200_000))
    lines = "0,0,5.0\n" * 2000
    (run / "evaluations.csv").write_text(f"{names}\n{lines}")
    since = time.process_time()
    assert list(each_evaluation(run)) == []
    (run / "evaluations.csv").write_text(ROWS)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (tmp_path / "wide.csv").write_text(f"{names}\n{lines}")
    config["task"]["initial_points"] = "wide.csv"
    found = read_designs([(run, config, Found("minimise"))])
    assert found is not None and not any(design.is_initial for design in found.successful)
    assert time.process_time() - since < 5


def test_points_of_a_file_of_another_owner_than_the_run_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config of somebody else could name a private file, and ask which designs are in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    run = beam(tmp_path / "run")
    assert any(design.is_initial for design in read(run).successful)
    for path in (run, run / "config.yaml"):
        os.chown(path, 12001, 12001)
    assert not any(design.is_initial for design in read(run).successful)
    os.chown(tmp_path / "known.csv", 12001, 12001)
    assert any(design.is_initial for design in read(run).successful)


def test_points_of_many_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = [beam(tmp_path / str(number)) for number in range(3)]
    read_text, read_files = designs_module.read_text, []

    def counting(file: Path, **options: int) -> str:
        read_files.append(file)
        return read_text(file, **options)

    monkeypatch.setattr(designs_module, "read_text", counting)
    config = yaml.safe_load((named[0] / "config.yaml").read_text())
    designs = read_designs([(run, config, Found()) for run in named])
    assert designs is not None and sum(one.is_initial for one in designs.successful) == 3
    assert read_files == [tmp_path / "known.csv"]
