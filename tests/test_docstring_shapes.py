"""Public functions with arrays state their shapes or dtypes: `python -m tests.test_docstring_shapes` lists the others.

A shape or dtype may be stated in the docstring, in a comment on a line of the signature, in the docstring of the same
method of a base class or protocol, or in the comment of an alias that annotates the array, such as `Rows`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.harness import ROOT

CEILING = 0  # may only go down

SHAPE_OR_DTYPE = re.compile(
    r"\b(?:u?int(?:8|16|32|64)|intp|float(?:16|32|64)|bfloat16|bool|complex(?:64|128)|row_dtype)\b|\[[^\]]*\]|\bshapes?\b"
)
ALIAS = re.compile(r"^(\w+)(?:: TypeAlias)? = (?:npt\.)?NDArray\[[^#\n]*(#.*)?$", re.MULTILINE)
NAMED_ARRAYS = re.compile(r"\b(?:Mapping|dict)\[str, \w+\]")  # documented where the names are


@dataclass(frozen=True)
class Function:
    """A function of a module or a method, with its comments on the lines of the signature."""

    location: str
    owner: ast.ClassDef | None
    node: ast.FunctionDef
    comments: str

    @property
    def is_public(self) -> bool:
        """Whether neither its name nor that of its class begins with an underscore."""
        return not (self.node.name.startswith("_") or (self.owner and self.owner.name.startswith("_")))

    @property
    def annotations(self) -> str:
        """The annotations of arguments and result."""
        arguments = self.node.args
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        parts = [argument.annotation for argument in everything if argument] + [self.node.returns]
        return " ".join(ast.unparse(part) for part in parts if part)

    @property
    def states_shapes(self) -> bool:
        """Whether its own docstring or comments state a shape or a dtype."""
        return SHAPE_OR_DTYPE.search(f"{ast.get_docstring(self.node) or ''} {self.comments}") is not None


def functions(file: Path, text: str) -> Iterator[Function]:
    """Yield the functions of a module and the methods of its classes."""
    lines = text.splitlines()
    name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
    tree = ast.parse(text)
    owners: list[tuple[ast.ClassDef | None, ast.Module | ast.ClassDef]] = [(None, tree)]
    owners += [(node, node) for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner, body in owners:
        for node in body.body:
            if isinstance(node, ast.FunctionDef):
                signature = lines[node.lineno - 1 : max(node.lineno, node.body[0].lineno - 1)]
                comments = " ".join(line.partition("  #")[2] for line in signature)
                yield Function(f"{name}:{node.lineno}", owner, node, comments)


def without_shapes(files: Sequence[Path]) -> tuple[list[Function], int]:
    """Return the public functions with arrays that state neither shape nor dtype, and the number of all with arrays."""
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    everything = [function for file, text in texts.items() for function in functions(file, text)]
    aliases = {name: comment or "" for text in texts.values() for name, comment in ALIAS.findall(text)}
    names = {name for name, comment in aliases.items() if not SHAPE_OR_DTYPE.search(comment)} | {"NDArray", "ArrayLike"}
    arrays = re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")
    public = [one for one in everything if one.is_public and arrays.search(NAMED_ARRAYS.sub("", one.annotations))]
    parents = {one.owner.name: _base_names(one.owner) for one in everything if one.owner}
    contracts = [one for one in everything if one.owner and one.states_shapes]
    result = []
    for function in public:
        bases = _ancestors(function.owner.name, parents) if function.owner else set()
        is_stated = any(
            contract.node.name == function.node.name
            and contract.owner is not None
            and (contract.owner.name in bases or "Protocol" in _base_names(contract.owner))
            and len(contract.node.args.args) == len(function.node.args.args)
            for contract in (contracts if function.owner else [])
        )
        if not function.states_shapes and not is_stated:
            result.append(function)
    return result, len(public)


def _base_names(owner: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases}


def _ancestors(name: str, parents: dict[str, set[str]]) -> set[str]:
    result: set[str] = set()
    ahead = [name]
    while ahead:
        new = parents.get(ahead.pop(), set()) - result
        result |= new
        ahead += new
    return result


def test_few_public_functions_with_arrays_state_neither_shape_nor_dtype() -> None:
    missing, _ = without_shapes(sorted((ROOT / "hpc_es").rglob("*.py")))
    assert len(missing) <= CEILING, "\n".join(f"{one.location} {one.node.name}" for one in missing)


MODULE = '''
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.void]  # row_dtype(columns)[jobs]


class Task(Protocol):
    def evaluate(self, thetas: Array) -> Array:
        """Return the returns, float64[jobs]."""

    def observe(self, rows: Array) -> Array:
        """Return the observations."""


class Sphere:
    def evaluate(self, thetas: Array) -> Array:
        return -(thetas**2).sum(-1)

    def observe(self, rows: Array) -> Array:
        return rows

    def _hidden(self, rows: Array) -> Array:
        return rows


def commented(
    mean: Array,  # float32[parameters]
) -> Array:
    """Return it."""


def aliased(rows: Rows) -> int:
    """Return a number."""


def named(arrays: dict[str, Array]) -> Array | None:
    """Return one."""
'''


def test_shapes_count_in_docstrings_comments_contracts_and_aliases(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(MODULE)
    missing, total = without_shapes([file])
    assert [(one.owner.name if one.owner else "", one.node.name) for one in missing] == [
        ("", "named"),
        ("Task", "observe"),
        ("Sphere", "observe"),
    ]
    assert total == 6


@pytest.mark.parametrize(
    "text", ["the mean, float32", "weights [pairs, 2]", "the shape is that of theta", "a bool mask"]
)
def test_shape_or_a_dtype_is_recognised(text: str) -> None:
    assert SHAPE_OR_DTYPE.search(text)
    assert not SHAPE_OR_DTYPE.search("Return the weights of the pairs (higher is better).")


def main() -> None:
    """Print the public functions with arrays that state neither shape nor dtype."""
    parser = argparse.ArgumentParser(prog="python -m tests.test_docstring_shapes", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "hpc_es", help="Python package; default: hpc_es")
    missing, total = without_shapes(sorted(parser.parse_args().folder.resolve().rglob("*.py")))
    for function in missing:
        name = f"{function.owner.name}.{function.node.name}" if function.owner else function.node.name
        print(f"{function.location}: {name}")
    print(f"{len(missing)} of {total} public functions with arrays state neither shape nor dtype")


if __name__ == "__main__":
    main()
