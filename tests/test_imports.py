"""Layers of imports, and libraries that must not be imported before they are needed."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import hpc_es
from hpc_es.config import extensions
from hpc_es.config.loading import validate
from hpc_es.config.resolved import dump_json
from hpc_es.core.extensions import SECTIONS
from hpc_es.core.keys import Purpose

COMPILED = {"jax", "jaxlib", "gymnax", "brax", "mujoco_playground", "jumanji", "craftax"}
# imported once JAX is set up
JAX_NETWORKS = {
    *(f"actor_critic/jax_{name}.py" for name in ("gradient", "networks", "updates")),
    "tasks/model/jax_model.py",
    *(
        f"policies/networks/jax_{name}.py"
        for name in ("convolutional", "convolutions", "low_rank", "networks")
    ),
    "noise/portable_jax.py",
}
# imported once PyTorch is set up
TORCH_NETWORKS = {
    "report/onnx_torch.py",
    *(
        f"policies/networks/torch_{name}.py"
        for name in ("calls", "checks", "files", "functions", "networks", "state_dict")
    ),
}
ROOT = Path(hpc_es.__file__).parent
FILES = {file.relative_to(ROOT).as_posix(): file for file in sorted(ROOT.rglob("*.py"))}
EXAMPLE = {
    "task": {"env_id": "CartPole-v1"},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"population_size": 8},
    "noise": {"table_size": 10_000},
    "evaluation": {"interval": 1, "episodes": 2},
    "stop": {"generations": 2},
    "report": {"plot_interval_seconds": 0},
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules named in the import statements of a tree; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def all_imports(file: str) -> set[str]:
    """The modules that a file imports, in functions too."""
    return set(imported(ast.parse(FILES[file].read_text())))


def top_level_imports(file: str) -> set[str]:
    """The modules imported together with the file: not in functions, nor for type checking only."""
    tree = ast.parse(FILES[file].read_text())
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            node.body = []
    return set(imported(tree))


@pytest.mark.parametrize("file", sorted(FILES))
def test_csv_is_written_by_one_module(file: str) -> None:
    """Its texts may be somebody else's, and formulas for spreadsheets."""
    written = re.search(r"csv\.(writer|DictWriter)\b", FILES[file].read_text())
    assert (written is not None) == (file == "core/spreadsheets.py")


def libraries(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("file", FILES)
def test_libraries_are_imported_only_in_their_modules(file: str) -> None:
    result, top = libraries(all_imports(file)), libraries(top_level_imports(file))
    if not file.startswith("mpi/"):
        assert "mpi4py" not in result
    if file not in {"storage/checkpoint.py", "storage/keras_file.py", "storage/plain_hdf5.py"}:
        assert "h5py" not in result
    if file not in {"tuning/study.py", "api/optuna_sampler.py"}:
        assert "optuna" not in result
    if file != "api/gest.py":
        assert "gest_api" not in result
    if file != "report/loggers.py":
        assert not result & {"tensorboard", "mlflow", "wandb"}
    assert not top & {"tensorboard", "mlflow", "wandb"}
    if "tensorflow" not in Path(file).name:
        assert not top & {"tensorflow", "keras"}
    if Path(file).parent != Path("tasks/jax_episodes") and file not in {
        "devices/jax_setup.py",
        *JAX_NETWORKS,
    }:
        assert not result & COMPILED
    if file not in JAX_NETWORKS:
        assert not result & {"flax", "equinox"}
    if file not in {*TORCH_NETWORKS, "devices/torch_setup.py"}:
        assert not result & {"torch", "safetensors"}
    assert file in TORCH_NETWORKS or "torch" not in top
    assert not top & {"pydantic", "mpi4py", "gym", "shimmy", *(COMPILED - {"jax"})}


def test_jax_is_imported_when_a_compiled_task_or_network_is_built() -> None:
    """It reads its threads and its platform from the environment:
    `devices/jax_setup.py` comes first.
    """
    tops = {name(file): top_level_imports(file) for file in FILES}
    with_jax = {module for module, top in tops.items() if "jax" in libraries(top)}
    while more := {module for module, top in tops.items() if top & with_jax} - with_jax:
        with_jax |= more
    folder = "hpc_es.tasks.jax_episodes"
    public = {"hpc_es.extend.compiled"}
    networks = {name(file) for file in JAX_NETWORKS}
    assert (
        with_jax
        == {f"{folder}.{name}" for name in ("environments", "program", "rollout", "segments")}
        | networks
        | public
    )


# The layers from bottom to top: a module imports from its own layer and those below.
LAYERS = (
    *(
        "core",
        "storage.plain_hdf5",
        "config",
        "mpi",
        "devices",
        "noise",
        "policies",
        "backends",
        "tasks",
        "algorithms",
    ),
    *(
        "storage",
        "trained",
        "report",
        "training",
        "api",
        "cluster",
        "tuning",
        "commands",
    ),
)
# above all layers
ENTRY_POINTS = ("cli", "main", "__main__", "__init__", "extend")
# Above these: the folders with an extension, and files with the public paths of former places,
# which belong to them.
SATELLITES: Mapping[str, tuple[str, ...]] = {
    "actor_critic": (),
    "bandits": ("tasks.bandits",),
    "programs": ("tasks.brainfuck",),
}


def name(file: str) -> str:
    """The dotted name of a module from its file."""
    return ".".join(["hpc_es", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {name(file): file for file in FILES}


def package_imports(tree: ast.AST) -> Iterator[str]:
    """Modules of hpc_es that a tree imports;
    `from hpc_es.a import b` is hpc_es.a.b if it exists, else hpc_es.a.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and str(node.module) in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (item if item in MODULES else str(node.module) for item in inner)


@functools.cache
def graph() -> dict[str, set[str]]:
    """The modules of this package that each module imports,
    also in functions and for type checking.
    """
    result: dict[str, set[str]] = {}
    for module, file in MODULES.items():
        result[module] = set(package_imports(ast.parse(FILES[file].read_text()))) - {module}
    return result


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other: those left after removing, repeatedly,
    modules without remaining imports.
    """
    left = {module: set(imports) for module, imports in edges.items()}
    while True:
        free = {module for module, imports in left.items() if not imports & left.keys()}
        used = {other for imports in left.values() for other in imports}
        free |= left.keys() - used
        if not free:
            return [sorted(left)] if left else []
        left = {module: imports - free for module, imports in left.items() if module not in free}


def layer(module: str) -> int:
    """Height of the layer of a module."""
    if satellite_of(module):
        return len(LAYERS) + 1
    _, *parts = [*module.split("."), "__init__"]
    names = [part for part in (".".join(parts[:2]), parts[0]) if part in (*ENTRY_POINTS, *LAYERS)]
    return len(LAYERS) if names[0] in ENTRY_POINTS else LAYERS.index(names[0])


def satellite_of(module: str) -> str | None:
    """The satellite to which a module belongs; None for the core."""
    place = module.partition(".")[2]
    for satellite, former in SATELLITES.items():
        if place.partition(".")[0] == satellite or place in former:
            return satellite
    return None


def upward_imports(edges: Mapping[str, set[str]]) -> list[str]:
    """Imports of modules of a higher layer."""
    return [
        f"{one} -> {other}"
        for one in edges
        for other in sorted(edges[one])
        if layer(other) > layer(one)
    ]


def test_package_has_no_import_cycle() -> None:
    assert cycles(graph()) == []


def test_imports_go_to_lower_layers_only() -> None:
    assert upward_imports(graph()) == []


def test_import_cycle_is_detected() -> None:
    edges = graph()
    below, above = "hpc_es.tasks.timeouts", "hpc_es.tasks.episodes.gymnasium_backend"
    assert below in edges[above]
    assert cycles({**edges, below: {above}}) == [[above, below]]


def test_import_from_a_higher_layer_is_detected() -> None:
    edges = {**graph(), "hpc_es.core.keys": {"hpc_es.algorithms.es"}}
    assert upward_imports(edges) == ["hpc_es.core.keys -> hpc_es.algorithms.es"]


def test_every_folder_has_a_layer() -> None:
    """A renamed folder must not escape its rule."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {layer for layer in LAYERS if "." not in layer} | {"extend", *SATELLITES}


# Satellites: packages within this distribution that live on the public contract.

# What satellites may import besides `hpc_es.extend` and its parts. Whoever changes one of these
# changes it for packages.
PUBLIC = {
    "core": {
        *("arguments", "callbacks", "data", "declarations", "elites", "errors", "extensions"),
        *("interfaces", "keys", "policy", "population", "run_files", "spreadsheets", "tabulated"),
        "text_table",
    },
    "config": {"options", "resolved", "schema"},
    "policies": {
        *("network", "sampling", "networks.jax_convolutional"),
        *("networks.layers", "networks.network", "networks.tensorflow_actors"),
        "networks.tensorflow_sequences",
    },
}


def test_every_extension_is_a_satellite() -> None:
    assert {file.parent.name for file in ROOT.glob("*/extension.py")} == set(SATELLITES)


@pytest.mark.parametrize("satellite", SATELLITES)
def test_satellites_import_public_parts_only(satellite: str) -> None:
    """Themselves, `hpc_es.extend` and PUBLIC: no other satellite either."""
    private = [
        f"{module} -> {other}"
        for module, imports in graph().items()
        if satellite_of(module) == satellite
        for other in sorted(imports)
        if satellite_of(other) != satellite and not is_public(other)
    ]
    assert private == []


def is_public(module: str) -> bool:
    """Whether satellites may import a module."""
    _, folder, *rest = module.split(".")
    return folder == "extend" or ".".join(rest) in PUBLIC.get(folder, ())


def test_public_modules_are_imported_by_satellites() -> None:
    """The list has no more than they need."""
    imported_ones = {
        other
        for module, imports in graph().items()
        if satellite_of(module)
        for other in imports
        if satellite_of(other) is None
    }
    listed = {f"hpc_es.{folder}.{name}" for folder, names in PUBLIC.items() for name in names}
    assert listed - imported_ones == set()


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, without its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield node.value


def names_of(satellite: str) -> set[str]:
    """What a satellite is called: its module, its kinds, commands and purposes.

    "programs" is also a kind of problem, which belongs to the contracts.
    """
    extension = extensions.own()[satellite]
    given = {name for section in SECTIONS for name in extension.named(section)}
    return {f"hpc_es.{satellite}", *given, *extension.purposes} - {"programs"}


def named_in(tree: ast.AST, satellite: str) -> set[str]:
    """The names of a satellite that the texts of a module contain as words."""
    words = "|".join(map(re.escape, names_of(satellite)))
    pattern = re.compile(rf"(?<![\w.-])({words})(?![\w-])")
    return {found for text in texts(tree) for found in pattern.findall(text)}


CORE = [file for module, file in MODULES.items() if satellite_of(module) is None]


@pytest.mark.parametrize("file", CORE)
def test_core_names_no_satellite(file: str) -> None:
    tree = ast.parse(FILES[file].read_text())
    assert [name for name in SATELLITES if named_in(tree, name)] == []


def test_names_of_satellites_are_detected() -> None:
    tree = ast.parse('''"""About bandits."""\nx = "expected 'bandits'"; y = "a bandit-report"''')
    assert named_in(tree, "bandits") == {"bandits", "bandit-report"}
    assert named_in(ast.parse("import_module('hpc_es.programs.ga')"), "programs") == {
        "hpc_es.programs"
    }


def test_numbers_of_purposes_are_distinct() -> None:
    """Also those of satellites, which results of old checkpoints depend on."""
    numbers = [*Purpose]
    numbers += [n for extension in extensions.own().values() for n in extension.purposes.values()]
    assert len(set(numbers)) == len(numbers)
    own = extensions.own()
    assert dict(own["programs"].purposes) == {"PROGRAMS": 11, "REPLAY": 14}
    assert dict(own["bandits"].purposes) == {"BANDITS": 15}


def test_extensions_are_read_only_where_they_are_needed(tmp_path: Path) -> None:
    """A command and a kind of the core need neither the folders nor the installed packages."""
    program = """
import importlib.metadata, sys
def refused(**arguments): raise AssertionError("the installed packages are searched")
importlib.metadata.distributions = refused
from hpc_es import cli
from hpc_es.config import registry
assert cli.summary("check") and registry.find("algorithms", "es")
assert not [name for name in sys.modules if name.endswith(".extension")]
assert cli.summary("bandit-report") and registry.find("tasks", "bandits")
assert registry.module("algorithms", "ga").Options().kind == "ga"
"""
    assert "hpc_es" in loaded(program, tmp_path)


def loaded(program: str, tmp_path: Path) -> set[str]:
    """Top-level modules that a program, which writes to tmp_path, has imported at its end."""
    tail = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program + tail],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_importing_a_session_is_cheap(tmp_path: Path) -> None:
    result = loaded("import hpc_es.main; import hpc_es.api.job", tmp_path)
    assert "gymnasium" not in result
    assert not result & {
        "tensorflow",
        "keras",
        "pydantic",
        "matplotlib",
        "mpi4py",
        "scipy",
        "pandas",
        "h5py",
    }


def test_importing_extend_is_cheap(tmp_path: Path) -> None:
    result = loaded("import hpc_es.extend", tmp_path)
    assert not result & {
        "tensorflow",
        "keras",
        "h5py",
        "mpi4py",
        "pydantic",
        "gymnasium",
        "torch",
        *COMPILED,
    }


def test_tuning_on_a_worker_imports_no_more_than_a_run(tmp_path: Path) -> None:
    result = loaded("import hpc_es.tuning.run; import hpc_es.commands.experiments", tmp_path)
    assert not result & {"pydantic", "optuna", "matplotlib", "h5py", "gymnasium"}


def test_run_on_the_cpu_never_imports_tensorflow(tmp_path: Path) -> None:
    program = (
        f"from hpc_es.api.train import train\nassert len(list(train({EXAMPLE!r}, 'run'))) == 2"
    )
    result = loaded(program, tmp_path)
    assert {"h5py", "pydantic", "gymnasium"} <= result
    assert not result & {"tensorflow", "keras", "matplotlib", "torch", *COMPILED}


WORKER = """
from pathlib import Path
from hpc_es.config.resolved import parse_resolved
from hpc_es.training.build import build_parts, build_task
from hpc_es.training.executors import SerialExecutor
from hpc_es.training.generation import Generation
from hpc_es.training.run import Run, RunRequest
from hpc_es.mpi.guard import Signals
from hpc_es.mpi.world import World

world, config = World("none"), parse_resolved({text!r})
made = build_parts(config, world, build_task(config))
run = Run(world, Signals(), config, request=RunRequest(Path()), parts=made, state=made.initial(), writer=None)
assert len(SerialExecutor().run(Generation(made, run.state, 2)).results.rows) == 8

import sys

needless = ("hpc_es.storage.", "hpc_es.report.", "hpc_es.tasks.functions.")
assert not [name for name in sys.modules if name.startswith(needless)]
"""


def test_worker_imports_neither_pydantic_nor_h5py_nor_tensorflow(tmp_path: Path) -> None:
    result = loaded(WORKER.format(text=dump_json(validate(EXAMPLE))), tmp_path)
    assert "gymnasium" in result
    assert not result & {
        "tensorflow",
        "keras",
        "pydantic",
        "matplotlib",
        "rich",
        "torch",
        "h5py",
        *COMPILED,
    }


def test_libraries_of_the_package_are_never_imported_from_directories_of_users() -> None:
    from hpc_es.config.user_code import LIBRARIES

    imported = {library for file in FILES for library in libraries(all_imports(file))}
    assert imported - sys.stdlib_module_names - {"hpc_es"} <= LIBRARIES
    # what Gymnasium and Shimmy look for
    assert {"bsuite", "deepmind_lab", "dm_control", "meltingpot", "pettingzoo"} <= LIBRARIES
