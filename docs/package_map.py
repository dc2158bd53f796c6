"""Draw the map of the package: its folders by height, with what each is for and how large it is.

    python docs/package_map.py docs/assets/package.svg

A folder stands above all that it imports from, in functions too; width is the number of lines.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from functools import cache
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parent.parent / "hpc_es"
FOLDERS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file())
# public paths of former places, which belong to the packages that they import
FORMER = {ROOT / "tasks/bandits.py", ROOT / "tasks/brainfuck.py"}
COLORS = ("#dbe9f6", "#e8f3dc", "#fdf0d5", "#f6e0e0")


def imported(folder: str) -> set[str]:
    """The other folders that the modules of a folder import from."""
    names: set[str] = set()
    for file in {*(ROOT / folder).rglob("*.py")} - FORMER:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("hpc_es.")} & {*FOLDERS} - {
        folder
    }


IMPORTED = {folder: imported(folder) for folder in FOLDERS}


@cache
def height(folder: str) -> int:
    """The height of a folder: one above the highest that it imports from."""
    return 1 + max(map(height, IMPORTED[folder]), default=-1)


def lines(folder: str) -> int:
    """The number of lines of a folder."""
    files = (ROOT / folder).rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def purpose(folder: str) -> str:
    """The first line of what a folder says of itself, without its name."""
    module = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
    text = (
        (ast.get_docstring(module) or "").split("\n\n")[0].translate({10: " ", 96: ""}).rstrip(".")
    )
    return text.partition("; ")[0]


def draw(path: Path) -> None:
    """Write the picture."""
    levels = [
        [folder for folder in FOLDERS if height(folder) == level]
        for level in range(1 + max(map(height, FOLDERS)))
    ]
    figure = Figure(figsize=(10.5, 0.68 * len(levels)))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(0, len(levels)))
    ax.axis("off")
    for level, folders in enumerate(levels):
        # narrow folders keep room for their text
        sizes = [max(lines(folder), 4500) for folder in folders]
        left, whole = 1.0, sum(sizes) / (98 - len(folders))
        for folder, size in zip(folders, sizes, strict=True):
            width = size / whole
            box = FancyBboxPatch(
                (left, level + 0.07),
                width,
                0.86,
                boxstyle="round,pad=0,rounding_size=0.6",
                mutation_aspect=0.03,
                facecolor=COLORS[level % len(COLORS)],
                edgecolor="#7a8794",
                linewidth=0.8,
            )
            ax.add_patch(box)
            title = f"{folder}   {lines(folder):,} lines"
            ax.text(left + 0.8, level + 0.74, title, fontsize=8.5, weight="bold", va="center")
            said = textwrap.wrap(purpose(folder), int(width * 1.95))[:3]
            ax.text(left + 0.8, level + 0.57, "\n".join(said), fontsize=7, va="top")
            left += width + 1
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "hpc_es"
    draw(Path(sys.argv[1]))
