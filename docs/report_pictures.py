"""Train short runs and draw the pictures of docs/guides/report.md, in headless Chromium.

    python docs/report_pictures.py docs --work /tmp/report_pictures

The pictures are the tops of the reports on nine runs of CartPole and one that fails, on a function
with parameters of every type, and on a tuning. A few minutes on two cores; runs that are there are
kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
CONFIGS, MIXED = ROOT / "configs", ROOT / "examples" / "mixed" / "tune.yaml"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, GAP = 1280, 44  # in pixels; gaps between sections are larger
# runs, and the greatest height
PICTURES = {
    "report": (("cartpole", "broken"), 2900),
    "report_designs": (("solver",), 3000),
    "report_tuning": (("tuning",), 2900),
}
TITLES = {"report": "A night of runs"}
FAILING = """
name: broken
task: {kind: function, function: "math:sqrt", dimension: 2}  # it takes no vector
algorithm: {kind: cma_es, sigma: 0.5}
stop: {generations: 5}
"""


def main() -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path, help="directory of the pictures")
    parser.add_argument("--work", type=Path, required=True, help="directory of runs and pages")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    train(work)
    for name, (runs, height) in PICTURES.items():
        hpc_es(work, "report", *runs, "-o", f"{name}.html", "--title", TITLES.get(name, runs[0]))
        photograph(work / f"{name}.html", arguments.output / f"{name}.png", height)


def train(work: Path) -> None:
    """Train the runs that are not there."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "broken.yaml").write_text(FAILING)
    short = ("--with", "cma_es,snes", "--seeds", "3", "stop.timesteps=60_000")
    commands = {
        "cartpole": ("compare", f"{CONFIGS}/es_cartpole.yaml", *short),
        "solver": ("train", f"{MIXED}", "stop.episodes=300", "stop.target_value=null"),
        "tuning": ("tune", f"{CONFIGS}/tune_cartpole_grid.yaml"),
        "broken": ("train", "broken.yaml"),
    }
    for name, words in commands.items():
        if not (work / name).exists():
            hpc_es(work, *words, "--output", name, fails=name == "broken")


def hpc_es(work: Path, *words: str, fails: bool = False) -> None:
    """Run a command of hpc-es in a directory, so that pages have relative paths."""
    command = [sys.executable, "-m", "hpc_es", *words]
    subprocess.run(command, cwd=work, check=not fails)  # noqa: S603


def photograph(page: Path, picture: Path, height: int) -> None:
    """Write the top of a page as a picture, up to the last gap between sections that fits."""
    browser = next(path for name in BROWSERS if (path := shutil.which(name)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--virtual-time-budget=5000", f"--window-size={WIDTH},{height}"]
    command = [browser, *options, f"--screenshot={picture.resolve()}", page.as_uri()]
    subprocess.run(command, check=True)  # noqa: S603
    with Image.open(picture) as image:
        top = image.convert("RGB")
    pixels = np.asarray(top)
    used = np.flatnonzero((pixels != pixels[0, 0]).any(axis=(1, 2)))
    gaps = used[:-1][np.diff(used) > GAP]
    end = int(used[-1]) if used[-1] < height - GAP else int(gaps[-1])
    top.crop((0, 0, WIDTH, end + GAP // 2)).quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main()
