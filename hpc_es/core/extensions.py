"""What a package gives hpc_es: the declaration that `config.extensions` finds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FIRST_NUMBER = 2**31  # of the purposes of other distributions
Section = Literal["algorithms", "tasks", "policies", "noise", "commands"]
SECTIONS: tuple[Section, ...] = ("algorithms", "tasks", "policies", "noise", "commands")
_KIND = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMMAND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_ENVIRONMENT = re.compile(r"\w+(\.\w+)*:([\w-]+/)?[\w.-]+", re.ASCII)
_OBJECT = re.compile(r"\w+(\.\w+)*(:\w+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What a package gives hpc_es.

    Names are those of configs and of the command line; values are the names of modules, or
    "module:name". The module of a kind has `Options`, `build` and `NEEDS` or `OFFERS`, as that of a
    custom kind. The module of the command `my-table` has `add_my_table_arguments(parser)` and
    `run_my_table(arguments)`, which returns the exit status; its docstring is the help text.

    Raises ValueError for a name or module of another form.

    Example:
        EXTENSION = Extension(
            algorithms={"my_search": "my_package.search"},
            commands={"my-table": "my_package.table"},
        )
    """

    algorithms: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    noise: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    # Module with `reads(text)` and `parse_config_string(text, task)`, for configs that are written
    # as one text, name=value,...
    config_strings: str = ""
    # Function `(arrays) -> BestMember | None`: the best solution among the arrays of a state on
    # rank 0, of an algorithm that does not move a centre.
    best_member: str = ""
    # function `(runs) -> sections` for the HTML report
    report_sections: str = ""
    # Gymnasium environments that modules of the package register, by the names that configs have:
    # "module:id". They belong to the package, so that nobody is asked to trust them.
    environments: tuple[str, ...] = ()
    # numbers of its purposes of random numbers by name, see `purpose_number`
    purposes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in SECTIONS:
            form = _COMMAND if section == "commands" else _KIND
            for name in self.named(section):
                if not form.fullmatch(name):
                    example = "my-command" if section == "commands" else "my_kind"
                    raise ValueError(
                        f"{section} of the extension: expected names such as {example!r}, found {name!r}"
                    )
        values = [value for section in SECTIONS for value in self.named(section).values()]
        values += [self.config_strings, self.best_member, self.report_sections]
        for value in values:
            if value and not _OBJECT.fullmatch(value):
                raise ValueError(
                    f"expected the name of a module, or module:name, in the extension, found {value!r}"
                )

        for name in self.environments:
            if not _ENVIRONMENT.fullmatch(name):
                raise ValueError(
                    f"environments of the extension: expected names such as 'my_package.envs:Name-v0', found {name!r}"
                )

    def named(self, section: Section) -> Mapping[str, str]:
        """Return the modules of a section by name."""
        by_section = {
            "algorithms": self.algorithms,
            "tasks": self.tasks,
            "policies": self.policies,
            "noise": self.noise,
            "commands": self.commands,
        }
        return by_section[section]


def purpose_number(name: str) -> int:
    """Return the number of a purpose of random numbers, such as "my_package.mutation".

    It follows from the name, which must not change since results depend on it, and differs from
    the numbers of hpc_es.
    """
    return FIRST_NUMBER | int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
