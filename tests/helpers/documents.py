"""The parts of README and docs/, for the tests that compare them with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from tests.helpers.harness import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *SITE]


def named(page: Path) -> str:
    """The id of a test of this page."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a language, with the files that they include."""
    result = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        re.sub(r'^--8<-- "(.*)"$', lambda file: (ROOT / file[1]).read_text(), block, flags=re.M)
        for block in result
    ]


def without_code(text: str) -> str:
    """The prose of a page: no code blocks, no code in a line."""
    return re.sub(
        r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def links(page: Path) -> list[tuple[str, str]]:
    """The file and the anchor of each link of a page that leads to a file or within the page."""
    result = re.findall(
        r"\]\(([^)\s#]*)(?:#([\w-]+))?\)", without_code(page.read_text(encoding="utf-8"))
    )
    return [(file, anchor) for file, anchor in result if not file.startswith("http")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as in MkDocs."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


def hooks() -> ModuleType:
    """The module docs/hooks/generated.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("generated", DOCS / "hooks" / "generated.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
