"""What docstrings and comments of hpc_es name in backquotes exists.

A name is looked up where a reader would: in the file that names it, among all that the package
defines, the keys and kinds of a config, the commands, files of the repository, and other libraries.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from hpc_es.cli import names as command_names
from hpc_es.config.loading import table
from tests.helpers.harness import ROOT

PACKAGE = ROOT / "hpc_es"
FILES = sorted(PACKAGE.rglob("*.py"))
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
FILE = re.compile(r"[\w./-]+\.(?:py|yaml|json|jsonl|csv|md|keras|h5|npz|txt|png)")
PARENTS = ("", "hpc_es", "hpc_es/tasks", "hpc_es/algorithms", "docs", "docs/guides")

PROGRAMS = ("python", "srun", "mpiexec", "mlflow", "h5dump", "struct")

# What nothing here defines, with the reason.
EXCEPTIONS = {
    "-o flock": "an option of mount",
    "--gres": "an option of srun",
    "--ntasks-per-gpu": "an option of srun",
    ".NAME.TOKEN.tmp.h5": "a pattern of file names",
    "AtariVectorEnv": "a class of ale_py",
    "COMMAND": "a placeholder",
    "K": "a placeholder",
    "KIND": "a placeholder",
    "OptimizeResult": "a class of SciPy",
    "Sub": "an example",
    "add_my_table_arguments": "an example",
    "computeResizeAreaTab": "a function of OpenCV",
    "conv_i_kernel": "a pattern of names",
    "data_x": "an example",
    "env_seed": "a key of the ES notebook's config.json",
    "family.KEYWORD": "a pattern of names",
    "hidden_i_kernel": "a pattern of names",
    "multiprocessing.Pool.map": "a method of what this function returns",
    "norm_n_beta": "a pattern of names",
    "norm_n_gamma": "a pattern of names",
    "hpc_es.kinds": "a group of entry points",
    "pandas.DataFrame": "a library that is not needed",
    "run_my_table": "an example",
    "scalar": "an example",
    "task.parameters.NAME": "a pattern of names",
    "trial.set_constraint": "a method of Optuna's trials",
    "x_velocity": "an example",
}


def words(span: str) -> list[str]:
    """The names in a backquoted text, without those within quotes."""
    return NAME.findall(re.sub(r"\"[^\"]*\"|'[^']*'", "", span))


RIGHT = (
    *("State.theta", "stopping.NAMES", "core.errors.ConfigError", "Needs.growing"),
    *("task.env_id", "algorithm.optimizer", "noise: {kind: table}"),
    *("hpc-es check", "python -m hpc_es.main", "training/pool.py", "metrics.jsonl"),
    *("jax.numpy", "np.vecdot", "number * 2**32"),
)
WRONG = {
    "State.thetas": ["State.thetas"],
    "stopping.NAMEN": ["stopping.NAMEN"],
    "core.errors.ConfigErrors": ["core.errors.ConfigErrors"],
    "hpc_es.minimise": ["hpc_es.minimise"],
    "hpc-es chek": ["chek"],
    "python -m hpc_es.mian": ["hpc_es.mian"],
    "training/pools.py": ["training/pools.py"],
    "np.vecdots": ["np.vecdots"],
    "--no-such-option": ["--no-such-option"],
    "ask(state, rownds)": ["rownds"],
}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@functools.cache
def texts(path: Path) -> list[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines; adjacent comments are one."""
    found = [
        (node.body[0].lineno, text)
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node))
    ]
    block, last = [""], 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                found.append((last, " ".join(block)))
                block = []
            last = token.start[0]
            block.append(token.string.lstrip("# "))
    return [*found, (last, " ".join(block))]


@functools.cache
def identifiers(path: Path) -> frozenset[str]:
    """All identifiers of a file's code, and its texts that are words, such as keys and kinds."""
    found: set[str] = set()
    for node in nodes(path):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Attribute(attr=name) | ast.MatchAs(name=str(name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=alias):
                found.update([*name.split("."), alias or name])
            case ast.Constant(value=str(text)) if len(text) < 60:
                found.update(NAME.findall(text))
            case ast.ImportFrom(module=str(name)):
                found.update(name.split("."))
    return frozenset(found)


@functools.cache
def defined() -> frozenset[str]:
    """What the package defines: modules, folders, functions, arguments, classes and their parts."""
    found = {name for path in FILES for name in (path.stem, path.parent.name)}
    for path in FILES:
        for node in nodes(path):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
    owners = [*classes().values(), *modules().values()]
    return frozenset(found.union(*owners))


@functools.cache
def classes() -> dict[str, set[str]]:
    """The attributes of each class of the package, with those of its base classes, by name."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(assigned(node.body), attributes(node))
                heads = [
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                ]
                names = {getattr(base, "id", None) or getattr(base, "attr", "") for base in heads}
                bases.setdefault(node.name, set()).update(names)

    def inherited(name: str, above: frozenset[str]) -> set[str]:
        further = (bases.get(name, set()) - above) & own.keys()
        parts = (inherited(base, above | {name}) for base in further)
        return own[name].union(*parts)

    return {name: inherited(name, frozenset({name})) for name in own}


@functools.cache
def modules() -> dict[str, set[str]]:
    """What modules and folders of the package have at their top, by their last name."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        name = path.parent.name if path.stem == "__init__" else path.stem
        body = tree(path).body
        imported = {
            alias.asname or alias.name
            for node in body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        found.setdefault(name, set()).update(assigned(body), imported)
        found.setdefault(path.parent.name, set()).update([path.stem])
        found.setdefault(path.parent.parent.name, set()).update([path.parent.name])
    return found


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define, without those within functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            for target in targets:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """The attributes that the methods of a class set."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr


@functools.cache
def config_words() -> frozenset[str]:
    """Keys and sections of the config, their parts, and the values in the table of keys."""
    found: set[str] = set()
    for name in NAME.findall(table()):
        parts = name.split(".")
        found.update(parts, (".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return frozenset(found)


@functools.cache
def texts_in_code() -> frozenset[str]:
    """Texts that are one word, such as names of arrays, columns and metrics."""
    return frozenset(
        node.value
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isidentifier()
    )


def in_library(name: str) -> bool:
    """Whether a dotted name is in Python or a library that is installed or known to the package."""
    root, *rest = name.split(".")
    root = {"np": "numpy", "jnp": "jax", "tf": "tensorflow"}.get(root, root)
    if root in LIBRARIES:
        return True
    if root not in (*sys.stdlib_module_names, "numpy", "annotated_types", "hpc_es"):
        return False
    return not rest or resolves(".".join([root, *rest]))


LIBRARIES = {"jax", "keras", "tensorflow", "gymnasium", "mpi4py", "gym", "h5py", "optuna", "ale_py"}


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        value: object = module
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def known(name: str, path: Path) -> bool:
    """Whether a name in a text of this file exists."""
    if name in config_words() or name in texts_in_code() or in_library(name):
        return True
    if name.split(".", maxsplit=1)[0].startswith("my_"):  # what a user would write
        return True
    first, *rest = name.split(".")
    while first in modules() and rest and rest[0] in modules()[first]:
        first, *rest = rest
    for owners in (classes(), modules()):
        if first in owners and rest and not is_local(first, path):
            return rest[0] in owners[first]
    return all(
        part in identifiers(path)
        or part in defined()
        or part in config_words()
        or part in command_names()
        or keyword.iskeyword(part)
        or hasattr(builtins, part)
        for part in name.split(".")
    )


def is_local(name: str, path: Path) -> bool:
    """Whether a name is a variable, an argument or an attribute in a file, and not a class."""
    return name in variables(path)


@functools.cache
def variables(path: Path) -> frozenset[str]:
    """The arguments, variables and attributes of a file."""
    found: set[str] = set()
    for node in nodes(path):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name):
                found.add(name)
    return frozenset(found)


def unknown(span: str, path: Path) -> list[str]:
    """The names in a backquoted text that do not exist."""
    span = " ".join(span.split())
    if span in EXCEPTIONS:
        return []
    first, *rest = span.split()
    if first == "hpc-es":
        return [word for word in rest[:1] if word not in {*command_names(), *EXCEPTIONS}]
    if first in PROGRAMS:
        named = re.findall(r"-m ([\w.]+)", span)
        return [module for module in named if not importlib.util.find_spec(module)]
    if re.fullmatch(r"--?[a-z-]+", span):
        return [] if any(span in source(file) for file in FILES) else [span]
    if FILE.fullmatch(span):
        at = [ROOT / parent / span for parent in PARENTS] + [path.parent / span]
        is_written = any(span in source(file) for file in FILES)
        return [] if is_written or any(file.exists() for file in at) else [span]
    return [word for word in words(span) if word not in EXCEPTIONS and not known(word, path)]


@functools.cache
def source(path: Path) -> str:
    """The short texts in the code of a file."""
    return "\n".join(
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200
    )


def test_names_in_backquotes_exist() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: `{span}`: {', '.join(names)}"
        for path in FILES
        for line, text in texts(path)
        for span in SPAN.findall(text)
        if (names := unknown(span, path))
    ]
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_named_somewhere() -> None:
    spans = {
        " ".join(span.split())
        for path in FILES
        for _, text in texts(path)
        for span in SPAN.findall(text)
    }
    named = spans.union(*(words(span) for span in spans))
    assert sorted(EXCEPTIONS.keys() - named) == []


def test_right_names_are_known_and_wrong_ones_found() -> None:
    here = PACKAGE / "core" / "data.py"
    assert [span for span in RIGHT if unknown(span, here)] == []
    assert {span: unknown(span, here) for span in WRONG} == WRONG


def test_docstrings_and_comments_are_read(tmp_path: Path) -> None:
    file = tmp_path / "text.py"
    file.write_text('"""Of `one`."""\n\n# Of `two\n# three`.\nx = 1  # `four`\n')
    spans = [span for _, text in texts(file) for span in SPAN.findall(text)]
    assert spans == ["one", "two three", "four"]
