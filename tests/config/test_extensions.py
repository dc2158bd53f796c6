"""Extensions of installed packages: fake distributions in the search path."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_es import cli
from hpc_es.config import extensions, registry, user_code
from hpc_es.config.loading import load, validate
from hpc_es.config.resolved import package_versions, resolved
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.extensions import purpose_number
from hpc_es.core.keys import Keys, Purpose
from hpc_es.storage.trust import find_code
from hpc_es.training.found import best_member

Install = Callable[..., None]

KIND = """
from hpc_es.extend import CMAES, CMAOptions, Needs, options, option
class Search(CMAES):
    @options
    class Options(CMAOptions):
        kind: str = option("name", "{kind}")
        factor: float = option("a number", 2.0)
    NEEDS = Needs(searches='vectors')
    build = classmethod(lambda cls, *arguments: cls(*arguments))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that installs a package: its name, the arguments of its Extension, other files."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)

    def make(name: str, declared: str, files: Mapping[str, str] = {}, value: str = "") -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        text = f"from hpc_es.core.extensions import Extension\nEXTENSION = Extension({declared})\n"
        for file, content in {"extension.py": text, **files}.items():
            (tmp_path / name / file).write_text(content)
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        point = f"{name} = {value or f'{name}.extension:EXTENSION'}"
        (info / "entry_points.txt").write_text(f"[{extensions.GROUP}]\n{point}\n")
        extensions._installed.cache_clear()

    extensions._installed.cache_clear()
    yield make
    extensions._installed.cache_clear()
    for module in set(sys.modules) - known:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(
            sys.modules[module].__file__
        ):
            del sys.modules[module]


def config(kind: str, **options: Any) -> Any:
    function = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 3}
    return {"task": function, "algorithm": {"kind": kind, **options}}


# What a package gives.


def test_kind_of_a_package_is_named_like_one_of_hpc_es(install: Install) -> None:
    install(
        "mine",
        "algorithms={'my_search': 'mine.search:Search'}",
        {"search.py": KIND.format(kind="my_search")},
    )
    assert "my_search" in registry.kinds("algorithms")
    valid = validate(config("my_search", factor=3.0))
    assert valid.algorithm.factor == 3.0
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.facto'; did you mean 'factor'"):
        validate(config("my_search", facto=3.0))
    with pytest.raises(ConfigError, match=r"found 'my_serch'; did you mean 'my_search'\?"):
        validate(config("my_serch"))


def test_version_of_the_package_is_recorded_and_its_code_needs_no_trust(install: Install) -> None:
    install(
        "mine",
        "algorithms={'my_search': 'mine.search:Search'}",
        {"search.py": KIND.format(kind="my_search")},
    )
    data = resolved(validate(config("my_search")))
    assert package_versions(data) == {"mine": "1.5"}
    assert package_versions(resolved(validate(config("cma_es")))) == {}
    data["task"] = {"kind": "episodes", "env_id": "CartPole-v1"}
    assert not find_code(data, {}).sources


def test_command_of_a_package_is_one_of_hpc_es(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "def add_my_count_arguments(parser): parser.add_argument('number', type=int)\n"
        "def run_my_count(arguments):\n    'Count.'\n    print(arguments.number + 1)\n    return 0\n"
    )
    install("mine", "commands={'my-count': 'mine.count'}", {"count.py": text})
    assert cli.run(["my-count", "4"]) == 0
    assert capsys.readouterr().out == "5\n"
    assert cli.run(["--help"]) == 0
    assert re.search(r"^  my-count +Count\.$", capsys.readouterr().out, re.MULTILINE)
    # those of hpc_es come first
    assert cli.names()[-1] == "my-count"


def test_environments_of_a_package_need_no_trust(install: Install) -> None:
    install("mine", "environments=('mine.worlds:World-v0',)")
    assert registry.is_own_code("mine.worlds:World-v0")
    assert registry.is_own_code("hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0")
    assert not registry.is_own_code("other.worlds:World-v0")
    # a module of a package imports others, which are not its own
    assert not registry.is_own_code("mine.worlds:os.system")


@pytest.mark.satellite("programs")
def test_notation_of_a_package_reads_its_texts(install: Install) -> None:
    text = (
        "def reads(text): return text.startswith('game=')\n"
        "def parse_config_string(text, task=None):\n"
        "    return {'name': 'mine', 'task': {'env_id': text[5:]}}\n"
    )
    install("mine", "config_strings='mine.notation'", {"notation.py": text})
    assert load("game=CartPole-v1").task.env_id == "CartPole-v1"
    assert load('env=c(task="reverse")').task.name == "reverse"
    # mistakes are reported by the notation of hpc_es
    with pytest.raises(ConfigError, match="unknown key 'evn'; did you mean 'env'"):
        load('evn=c(task="reverse")')


def test_text_in_no_notation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "own", dict)
    with pytest.raises(ConfigError, match="in a notation that no installed package reads"):
        load('env=c(task="reverse")')


def test_best_member_is_read_by_the_package_of_the_algorithm(install: Install) -> None:
    text = (
        "from hpc_es.extend import BestMember\n"
        "def best(arrays):\n"
        "    return BestMember(float(arrays['found']), 'abc', {'letters': 3})\n"
    )
    install(
        "mine",
        "algorithms={'my_search': 'mine.x'}, best_member='mine.state:best'",
        {"state.py": text},
    )
    arrays = {"found": np.array(2.5)}
    member = best_member({"algorithm": {"kind": "my_search"}}, arrays)
    assert member is not None
    assert (member.value, member.x, member.facts) == (2.5, "abc", {"letters": 3})
    assert best_member({"algorithm": {"kind": "es"}}, arrays) is None


# What is wrong.


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (
            "algorithms={'my search': 'mine.x'}",
            "expected names such as 'my_kind', found 'my search'",
        ),
        ("algorithms={'my.search': 'mine.x'}", "expected names such as 'my_kind'"),
        (
            "commands={'My-count': 'mine.x'}",
            "expected names such as 'my-command', found 'My-count'",
        ),
        ("tasks={'mine': 'mine/x.py'}", "expected the name of a module, or module:name"),
        ("purposes={'CHANCE': 99}", r"expected numbers of purpose_number\(...\) as purposes"),
        ("kinds={}", "TypeError"),
    ],
)
def test_wrong_declaration_leaves_the_package_out(
    declared: str, text: str, install: Install
) -> None:
    """The others work, and who looks for its kinds learns why they are not there."""
    install("mine", declared)
    install("other", "algorithms={'theirs': 'other.x'}")
    assert "theirs" in registry.kinds("algorithms")
    with pytest.raises(ConfigError, match=rf"the package 'mine' is left out: .*{text}"):
        registry.module("algorithms", "mine")
    with pytest.raises(ConfigError, match=r"algorithm\.kind: .*the package 'mine' is left out"):
        validate(config("mine"))
    assert validate(config("es")).algorithm.kind == "es"


def test_object_that_is_no_extension_is_named(install: Install) -> None:
    install("mine", "", value="mine.extension:Extension")
    (left_out,) = extensions.unusable()
    assert left_out.name == "mine" and "found one of type type" in left_out.reason


def test_name_of_two_packages_is_refused(install: Install) -> None:
    install("mine", "algorithms={'search': 'mine.x'}")
    install("other", "algorithms={'search': 'other.x'}")
    text = "algorithm.kind: algorithms: the packages 'mine' and 'other' both have 'search'"
    with pytest.raises(ConfigError, match=text):
        validate(config("search"))


@pytest.mark.satellite("programs")
def test_names_of_hpc_es_come_first(install: Install) -> None:
    install("mine", "algorithms={'es': 'mine.x', 'ga': 'mine.x'}, commands={'check': 'mine.x'}")
    assert registry.module("algorithms", "es").Options().kind == "es"
    assert registry.module("algorithms", "ga").Options().kind == "ga"
    assert "valid" in cli.summary("check").lower()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (KIND.format(kind="another"), "with 'my_search' as the default of kind, found 'another'"),
        ("import missing_library", "No module named 'missing_library'"),
        ("class Search: pass", "found no Options and no build and no NEEDS"),
    ],
)
def test_kind_that_cannot_be_used_is_reported(content: str, text: str, install: Install) -> None:
    install("mine", "algorithms={'my_search': 'mine.search:Search'}", {"search.py": content})
    with pytest.raises(ConfigError, match=rf"^algorithm\.kind: .*{text}"):
        validate(config("my_search"))
    assert validate(config("es")).algorithm.kind == "es"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("import missing_library", "No module named 'missing_library'"),
        ("def run_my_count(arguments): pass", "expected add_my_count_arguments in the module"),
    ],
)
def test_command_that_cannot_be_used_is_reported(
    content: str, text: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also among the others."""
    install("mine", "commands={'my-count': 'mine.count'}", {"count.py": content})
    with pytest.raises(UserError, match=f"the command 'my-count' cannot be used: .*{text}"):
        cli.run(["my-count", "4"])
    assert cli.run(["--help"]) == 0
    assert re.search(rf"^  my-count +the command .*{text}", capsys.readouterr().out, re.MULTILINE)


def test_packages_beside_a_config_or_a_run_are_not_installed(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have come with it, and would run without being trusted."""
    install("mine", "algorithms={'my_search': 'mine.x'}")
    assert registry.is_known("algorithms", "my_search")
    extensions._installed.cache_clear()
    monkeypatch.setattr(user_code, "_directories", {})
    monkeypatch.setattr(user_code, "_appended", set())
    elsewhere = [path for path in sys.path if path != str(tmp_path)]
    monkeypatch.setattr(sys, "path", [*elsewhere])
    user_code.import_from([str(tmp_path)])
    assert str(tmp_path) in sys.path
    assert not registry.is_known("algorithms", "my_search")
    # of an interactive Python in that directory
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *elsewhere])
    extensions._installed.cache_clear()
    assert not registry.is_known("algorithms", "my_search")


# Purposes of random numbers.


def test_purposes_of_packages_are_numbers_of_their_own() -> None:
    """The SHA-256 of the name begins with 6d9e0f3f; the highest bit is set, as in no number of
    hpc_es.
    """
    number = purpose_number("own_package.mutation")
    assert number == 0x6D9E0F3F + 2**31 > max(Purpose)
    assert number != purpose_number("own_package.restart")
    keys = Keys(2**64 - 1, 2**32 - 1)
    first = keys.generator(number, 3, 4).random(4)
    assert first.tolist() == keys.generator(number, 3, 4).random(4).tolist()
    assert first.tolist() != keys.generator(Purpose.GENETICS, 3, 4).random(4).tolist()
