"""What files, progress lines and callers call the results of a task: returns or values.

Inside, every job has a return, which is maximised, and is counted as an episode. A function or a
program returns a value, with the sign that its user gave it, and is evaluated. `Vocabulary.public`
translates a row of metrics, a result or a status at the place where it leaves the program, and
`Vocabulary.internal` what is read back:

| inside, and for episodes | functions, programs, and custom tasks with values |
|---|---|
| `return_mean` | `value_mean`, with the user's sign, as the others |
| `evaluation_return_mean` | `centre_value_mean`: of the centre of the search |
| `final_return`, `best_return` | `final_value`, `best_centre_value` |
| `episodes_total`, `failed_episodes` | `evaluations_total`, `failed_evaluations` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpc_es.core.declarations import Offers
from hpc_es.core.quantities import Goal

# Numbers in the unit of returns, which change their sign if values are minimised.
SIGNED = {
    "return_mean": "value_mean",
    "return_min": "value_min",
    "return_max": "value_max",
    "evaluation_return_mean": "centre_value_mean",
    "evaluation_return_min": "centre_value_min",
    "evaluation_return_max": "centre_value_max",
    "final_return": "final_value",
    "final_return_mean": "final_value_mean",
    "best_return": "best_centre_value",
}
UNSIGNED = {
    "return_std": "value_std",
    "evaluation_return_std": "centre_value_std",
    "final_return_std": "final_value_std",
    "evaluation_length_mean": "centre_length_mean",
    "evaluation_episodes": "centre_evaluations",
    "episodes": "evaluations",
    "episodes_this_generation": "evaluations_this_generation",
    "episodes_total": "evaluations_total",
    "failed_episodes": "failed_evaluations",
}
OF_CENTRE = "evaluation_", "centre_"  # of means of objectives, constraints, measures, metrics
GROUPS = tuple(f"{group}_" for group in ("objective", "constraint", "measure", "metric", "info"))


@dataclass(frozen=True)
class Vocabulary:
    """The names and signs of the results of a task."""

    has_values: bool = False  # whether a job yields a value rather than the return of an episode
    goal: Goal = "maximise"  # of values

    @property
    def sign(self) -> int:
        """The factor between returns and what the user sees."""
        return -1 if self.has_values and self.goal == "minimise" else 1

    @cached_property
    def _names(self) -> dict[str, str]:
        if not self.has_values:
            return {}
        names = {**SIGNED, **UNSIGNED}
        if self.sign < 0:
            # the lowest return is the highest value
            for low in ("return_min", "evaluation_return_min"):
                high = low.replace("min", "max")
                names[low], names[high] = names[high], names[low]
        return names

    @cached_property
    def _known(self) -> dict[str, tuple[str, bool]]:
        """The public name of entries that were translated, and whether they change their sign."""
        return {}

    @cached_property
    def _originals(self) -> dict[str, str]:
        return {public: name for name, public in self._names.items()}

    def name(self, name: str) -> str:
        """Return the public name of an entry."""
        return self._names.get(name) or self._of_group(name, *OF_CENTRE)

    def public(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return entries with the names and signs of users; others stay as they are."""
        if not self.has_values:
            return dict(entries)
        # rows have some 60 entries, and a generation of a cheap function takes microseconds
        known, result = self._known, {}
        for name, value in entries.items():
            if name not in known:
                known[name] = self.name(name), self.sign < 0 and name in SIGNED
            public, is_negated = known[name]
            result[public] = _negated(value) if is_negated else value
        return result

    def internal(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return public entries with the names and signs inside: the inverse of `public`.

        Entries that have names of the inside already, of earlier versions, stay as they are.
        """
        result = {}
        for public, value in entries.items():
            name = self._originals.get(public) or self._of_group(public, *reversed(OF_CENTRE))
            is_negated = self.sign < 0 and name in SIGNED and name != public
            result[name] = _negated(value) if is_negated else value
        return result

    def _of_group(self, name: str, prefix: str, other: str) -> str:
        rest = name.removeprefix(prefix)
        is_one = self.has_values and rest != name and rest.startswith(GROUPS)
        return f"{other}{rest}" if is_one else name


def _negated(value: float | None) -> float | None:
    return None if value is None else -value + 0.0  # 0, not -0


RETURNS = Vocabulary()


def inside(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of status.json or result.json, which state the goal, by `internal`."""
    goal: Goal = "minimise" if status.get("goal") == "minimise" else "maximise"
    return Vocabulary(True, goal).internal(status)


def counted(row: Mapping[str, Any], name: str) -> Any:
    """Return a count of a row of metrics by its name inside, whichever vocabulary the row has."""
    return row.get(name, row.get(UNSIGNED[name]))


def vocabulary_of(offers: Offers) -> Vocabulary:
    """Return the vocabulary of the tasks with these capabilities."""
    return Vocabulary(offers.values or offers.goal is not None, offers.goal or "maximise")
