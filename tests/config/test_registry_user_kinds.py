"""User-defined kinds: resolved, validated, listed and suggested like built-in ones,
and hashed without import.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_es.config import registry, source_code, user_code
from hpc_es.config.loading import load, table, validate
from hpc_es.config.resolved import dump, dump_json, identity, parse_resolved
from hpc_es.core.errors import ConfigError

SOURCE = """
from collections.abc import Iterator
from typing import Literal
from hpc_es.config.options import Count, option, options

@options
class Options:
    kind: Literal["own"] = option("which", "own")
    width: Count = option("how wide", 3)
    depth: Count = option("how deep")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.width and self.depth > self.width:
            yield "depth", "is more than the width"

def build(options, spaces):
    raise NotImplementedError

class Net:
    Options, build = Options, staticmethod(build)

class Bare:
    pass

class Lax:
    class Options:
        kind: str = "x"
    build = None
"""
BASE = {"task": {"env_id": "CartPole-v1"}}
_numbers = itertools.count()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a module with a unique name into the current directory; return the name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_code, "_current", [])
    user_code.make_importable()

    def write(source: str = SOURCE) -> str:
        name = f"own_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def problems(kind: str, **options: object) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as error:
        validate({**BASE, "policy": {"kind": kind, **options}})
    return list(error.value.problems)


@pytest.mark.parametrize("text", ["a.b", "a:B", "a.b:C", "_x.y1"])
def test_names_with_a_dot_or_colon_are_user_kinds(text: str) -> None:
    assert registry.is_user_kind(text)


@pytest.mark.parametrize(
    "text",
    [
        "mlp",
        "",
        "../es",
        "a:b:c",
        "a..b",
        ".a",
        "a.",
        "1a.b",
        "a b:c",
        "hpc_es.tasks.episodes",
        3,
        None,
    ],
)
def test_names_without_a_dot_or_colon_are_not_user_kinds(text: object) -> None:
    assert not registry.is_user_kind(text)


def test_object_of_a_module_and_a_module_of_a_package_are_kinds(
    own: Callable[..., str], tmp_path: Path
) -> None:
    name = own()
    config = validate({**BASE, "policy": {"kind": f"{name}:Net", "depth": 2}})
    assert (config.policy.kind, config.policy.width, config.policy.depth) == (f"{name}:Net", 3, 2)
    assert registry.module("policies", f"{name}:Net") is sys.modules[name].Net
    (tmp_path / f"{name}_package").mkdir()
    (tmp_path / f"{name}_package" / "net.py").write_text(SOURCE)
    config = validate({**BASE, "policy": {"kind": f"{name}_package.net", "depth": 1}})
    assert config.policy.kind == f"{name}_package.net"


@pytest.mark.parametrize("write", [dump, dump_json])
def test_user_kind_is_resolved_rebuilt_and_in_the_identity(
    own: Callable[..., str], write: Callable[..., str]
) -> None:
    kind = f"{own()}:Net"
    config = validate({**BASE, "policy": {"kind": kind, "depth": 2}})
    assert parse_resolved(write(config)) == config
    assert identity(config)["policy"] == {"kind": kind, "width": 3, "depth": 2}


def test_default_of_a_user_kind_may_have_another_type(own: Callable[..., str]) -> None:
    """It is not validated when a run starts either."""
    source = SOURCE.replace('"how wide", 3', '"how wide", None').replace(
        '"how deep"', '"how deep", (1, 2)'
    )
    kind = f"{own(source)}:Net"
    config = validate({**BASE, "policy": {"kind": kind}, "name": "x"})
    assert (config.policy.width, config.policy.depth) == (None, (1, 2))
    assert parse_resolved(dump_json(config)).policy.width is None


def test_options_of_a_user_kind_are_validated_at_once(own: Callable[..., str]) -> None:
    kind = f"{own()}:Net"
    assert problems(kind, width=0, widht=2) == [
        ("policy.widht", "unknown key 'policy.widht'; did you mean 'width'?"),
        ("policy.width", "expected a whole number of at least 1, found 0"),
        (
            "policy.depth",
            "expected a whole number of at least 1 (how deep), but the key is missing",
        ),
    ]
    assert problems(kind, depth=4) == [("policy.depth", "is more than the width")]


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        (SOURCE, ":Nett", "expected Nett in the module '{0}'"),
        (SOURCE, ":Bare", "expected Options, build in '{0}:Bare', found no Options and no build"),
        (SOURCE, ":Lax", "expected Options of '{0}:Lax' to be made with @options of hpc_es.extend"),
        (
            "import no_such_module",
            ":Net",
            "found '{0}': ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "x = 1\nx / 0",
            ":Net",
            "found '{0}': ZeroDivisionError: division by zero ({1}/{0}.py, line 2)",
        ),
        ("def (", ":Net", "found '{0}': SyntaxError"),
    ],
)
def test_invalid_user_kinds_are_refused_with_the_reason(
    own: Callable[..., str], tmp_path: Path, source: str, name: str, expected: str
) -> None:
    module = own(source)
    [(key, text)] = problems(module + name)
    assert key == "policy.kind"
    assert expected.format(module, tmp_path) in text


def test_file_named_without_its_class_gives_a_hint(own: Callable[..., str], tmp_path: Path) -> None:
    module = own()
    [(key, text)] = problems(module)
    assert key == "policy.kind"
    assert text.endswith(
        f"found '{module}'; a class in {tmp_path / module}.py is named '{module}:Name'"
    )
    # not the user's
    assert [text.partition(";")[2] for _, text in problems("numpy") + problems("json")] == ["", ""]


def test_missing_module_is_reported_with_the_searched_directories(
    own: Callable[..., str], tmp_path: Path
) -> None:
    [(key, text)] = problems("not_there.net")
    assert key == "policy.kind"
    assert text == (
        "expected a module to import, found 'not_there.net': ModuleNotFoundError: No module named 'not_there'; "
        f"looked in {tmp_path} and the Python path"
    )


def test_misspelt_builtin_kind_has_a_suggestion(own: Callable[..., str]) -> None:
    assert problems("mpl") == [
        (
            "policy.kind",
            "expected one of 'cnn', 'lstm', 'mlp', 'network', found 'mpl'; did you mean 'mlp'?",
        )
    ]


def test_user_tasks_and_algorithms_declare_offers_and_needs(own: Callable[..., str]) -> None:
    name = own()
    with pytest.raises(
        ConfigError, match=r"task\.kind: expected Options, build, OFFERS in .* found no OFFERS"
    ):
        validate({"task": {"kind": f"{name}:Net"}})
    with pytest.raises(
        ConfigError, match=r"algorithm\.kind: expected Options, build, NEEDS in .* found no NEEDS"
    ):
        validate({**BASE, "algorithm": {"kind": f"{name}:Net"}})


def test_table_lists_the_kinds_of_a_config(own: Callable[..., str], tmp_path: Path) -> None:
    kind = f"{own()}:Net"
    (tmp_path / "my.yaml").write_text(f"policy: {{kind: '{kind}'}}\nalgorithm: {{kind: es}}\n")
    lines = table(tmp_path / "my.yaml", ["noise={kind: counter}"]).splitlines()
    assert any(
        line.startswith(f"| `policy.kind` | '{kind}' | `mlp` | kind of policy") for line in lines
    )
    assert "| `policy.width` | a whole number of at least 1 | `3` | how wide |" in lines
    assert any(line.startswith("| `algorithm.sigma` ") for line in lines)
    assert not any(
        "hidden_dims" in line or "crossover" in line or "table_size" in line for line in lines
    )
    with pytest.raises(
        ConfigError, match=r"policy\.kind: expected a module to import, found 'gone'"
    ):
        table(tmp_path / "my.yaml", ["policy.kind=gone:Net"])


# Import paths.


def test_user_directories_are_appended_to_the_path_once(
    own: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [*sys.path]
    (tmp_path / "beside").mkdir()
    for _ in range(2):
        user_code.make_importable(tmp_path / "beside", tmp_path / "not there")
    assert sys.path == [*before, str(tmp_path / "beside")]
    assert user_code.import_directories() == (str(tmp_path), str(tmp_path / "beside"))


def test_modules_next_to_the_config_are_found(own: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    name = own()
    (tmp_path / f"{name}.py").rename(tmp_path / "beside" / f"{name}.py")
    config = tmp_path / "beside" / "my.yaml"
    config.write_text(f"task: {{env_id: CartPole-v1}}\npolicy: {{kind: '{name}:Net', depth: 2}}\n")
    assert load(config).policy.depth == 2


@pytest.mark.parametrize("mark", ["checkpoints/best.h5", "checkpoint_0000000001.h5", "trials.json"])
def test_run_directory_is_not_searched_for_modules(
    own: Callable[..., str], tmp_path: Path, mark: str
) -> None:
    run = tmp_path / "runs" / "a"
    (run / "checkpoints").mkdir(parents=True)
    (run / mark).touch()
    user_code.make_importable(run, run / "checkpoints", tmp_path / "runs")
    assert user_code.import_directories() == (str(tmp_path), str(tmp_path / "runs"))


# Sources.


def test_hash_of_a_module_is_that_of_its_file_without_import(own: Callable[..., str]) -> None:
    source = "import pathlib\npathlib.Path('ran').touch()\n"
    name = own(source)
    assert source_code.source_hash(f"{name}:Net") == hashlib.sha256(source.encode()).hexdigest()
    assert name not in sys.modules
    assert not Path("ran").exists()
    assert source_code.source_hash("not_there:Net") == ""


def test_hash_of_a_package_is_of_all_its_files(own: Callable[..., str], tmp_path: Path) -> None:
    package = tmp_path / "my_package_of_nets"
    (package / "inner").mkdir(parents=True)
    contents = {
        "__init__.py": "import pathlib; pathlib.Path('ran').touch()",
        "inner/a.py": "x = 1",
        "net.py": SOURCE,
    }
    for name, text in contents.items():
        (package / name).write_text(text)
    (package / "notes.txt").write_text("nothing")
    lines = [
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n"
        for name, text in sorted(contents.items())
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert source_code.source_hash("my_package_of_nets.net") == expected
    assert not Path("ran").exists()
    (package / "inner" / "a.py").write_text("x = 2")
    assert source_code.source_hash("my_package_of_nets.net") != expected


QUIET = """
from hpc_es.config.options import option, options
from hpc_es.core.declarations import Needs

class Quiet:
    NEEDS = Needs(searches="vectors")

    @staticmethod
    def build(*arguments):
        raise AssertionError

    @options
    class Options:
        kind: str = option("this class")
        noise_handling: bool = option("what this algorithm does with noise", False)
"""


def test_presets_of_noisy_tasks_leave_options_of_other_algorithms_alone(
    own: Callable[..., str],
) -> None:
    """A custom algorithm may have an option of any name and type."""
    task = {"kind": "function", "function": "tests.helpers.toys:ellipsoid", "dimension": 2}
    kinds = (f"{own(QUIET)}:Quiet", "cma_es")
    chosen = [validate({"task": task, "algorithm": {"kind": kind}}).algorithm for kind in kinds]
    assert [options.noise_handling for options in chosen] == [False, "auto"]
