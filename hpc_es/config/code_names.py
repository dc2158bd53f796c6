"""Names of code in a config: `module:object`, or `module:namespace/Name-v0` of an environment.

What a text names is decided here alone, for the question whether a run of somebody else may run it
(`storage.trust`), for the list of what would run, and for the import itself. So nothing can be
imported that nobody was asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType

# Names are of any language: a module may be called münze. An object may be in a class or in a
# function (outer.<locals>.inner), and an environment may have a namespace and a version.
_MODULE = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")
_NAME = re.compile(rf"({_MODULE.pattern}):([\w<][\w.<>/-]*)")
_ENVIRONMENT = re.compile(r"(?:[\w-]+/)?[\w.-]+")

# Wrappers and environments of hpc_es, which configs name as they name those of the user. They are
# whole names: the modules that they are in import others, which are no part of hpc_es.
OWN = frozenset(
    (
        "hpc_es.tasks.deceptive_maze:DeceptiveMaze-v0",
        "hpc_es.tasks.flat_action:FlatAction",
        "hpc_es.tasks.last_step:LastStep",
    )
)


@dataclass(frozen=True)
class CodeName:
    """A name of code: the module that is imported, and the object in it or the environment."""

    module: str
    item: str

    @classmethod
    def of(cls, text: str) -> CodeName:
        """Return what a text names; ValueError if it is no name of code."""
        found = _NAME.fullmatch(text)
        if found is None:
            text = text if len(text) <= 100 else f"{text[:97]}..."
            raise ValueError(f"expected a name such as my_module:name, found {text!r}")
        return cls(found[1], found[2])

    def require_environment(self) -> None:
        """Raise ValueError if the object cannot be the id of an environment."""
        if not _ENVIRONMENT.fullmatch(self.item):
            raise ValueError(f"expected an id such as Name-v0 after {self.module}:")

    def steps(self) -> list[str]:
        """Return the attributes from the module to the object; ValueError if they are none."""
        names = self.item.split(".")
        if wrong := [name for name in names if not name.isidentifier()]:
            raise ValueError(f"{wrong[0]!r} is no name of Python")
        return names

    def require_inside(self, found: object, step: str) -> None:
        """Raise ValueError if a step has left the module: to another module, which it imports."""
        if isinstance(found, ModuleType) and not found.__name__.startswith(f"{self.module}."):
            raise ValueError(
                f"{step} of {self.module} is the module {found.__name__!r}: "
                "write that before the colon"
            )


def is_module_name(text: str) -> bool:
    """Return whether a module may have this name."""
    return _MODULE.fullmatch(text) is not None
