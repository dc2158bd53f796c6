"""What files, progress lines and callers call the results of a task: returns, values or scores.

Inside, every job has a return, which is maximised, and is counted as an episode. A function or a
program returns a value, with the sign that its user gave it, a model has a score, and both are
evaluated. `Vocabulary.public` translates a row of metrics, a result or a status at the place where
it leaves the program, and `Vocabulary.internal` what is read back:

| inside, and for episodes | functions, programs, custom tasks with values | models |
|---|---|---|
| `return_mean` | `value_mean`, with the user's sign, as the others | `score_mean` |
| `evaluation_return_mean` | `centre_value_mean`: of the search's centre | `centre_score_mean` |
| `final_return`, `best_return` | final_value, best_centre_value | final_score, ... |
| `episodes_total`, `failed_episodes` | `evaluations_total`, `failed_evaluations` | the same |
| `timesteps_total`, `length_mean` | left out: an evaluation has no timesteps | the same |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from hpc_es.core.declarations import Offers
from hpc_es.core.quantities import Goal

Noun = Literal["return", "value", "score"]  # what a job yields

# Numbers in the unit of returns, which change their sign if values are minimised. The braces stand
# for the noun.
SIGNED = {
    "return_mean": "{}_mean",
    "return_min": "{}_min",
    "return_max": "{}_max",
    "evaluation_return_mean": "centre_{}_mean",
    "evaluation_return_min": "centre_{}_min",
    "evaluation_return_max": "centre_{}_max",
    "final_return": "final_{}",
    "final_return_mean": "final_{}_mean",
    "best_return": "best_centre_{}",
}
UNSIGNED = {
    "return_std": "{}_std",
    "evaluation_return_std": "centre_{}_std",
    "final_return_std": "final_{}_std",
}
COUNTED = {
    "evaluation_length_mean": "centre_length_mean",
    "evaluation_episodes": "centre_evaluations",
    "episodes": "evaluations",
    "episodes_this_generation": "evaluations_this_generation",
    "episodes_total": "evaluations_total",
    "failed_episodes": "failed_evaluations",
}
# counts of timesteps, and what stands for each where jobs have none
TIMESTEPS = {
    "timesteps": "episodes",
    "timesteps_this_generation": "episodes_this_generation",
    "timesteps_total": "episodes_total",
}
# what evaluations do not have
OF_EPISODES = {*TIMESTEPS, "length_mean", "evaluation_length_mean"}
OF_CENTRE = "evaluation_", "centre_"  # of means of objectives, constraints, measures, metrics
GROUPS = tuple(f"{group}_" for group in ("objective", "constraint", "measure", "metric", "info"))


@dataclass(frozen=True)
class Vocabulary:
    """The names and signs of the results of a task."""

    noun: Noun = "return"
    goal: Goal = "maximise"  # of values

    @property
    def has_values(self) -> bool:
        """Whether a job yields the value of an objective."""
        return self.noun == "value"

    @property
    def has_episodes(self) -> bool:
        """Whether a job is an episode with a return, rather than an evaluation."""
        return self.noun == "return"

    @property
    def sign(self) -> int:
        """The factor between returns and what the user sees."""
        return -1 if self.has_values and self.goal == "minimise" else 1

    def activities(self, seconds: Mapping[str, float]) -> dict[str, str]:
        """Return what to call the activities that ranks have spent these seconds on.

        A function or model is evaluated, without an environment, and usually without a policy.
        """
        if self.has_episodes:
            return {name: name for name in seconds}
        names = [name for name in seconds if name != "policy" or seconds[name]]
        return {name: "evaluation" if name == "environment" else name for name in names}

    @cached_property
    def _names(self) -> dict[str, str]:
        if self.has_episodes:
            return {}
        named = {name: text.format(self.noun) for name, text in {**SIGNED, **UNSIGNED}.items()}
        names = {**named, **COUNTED}
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
        """Return entries with the names and signs of users; others stay as they are.

        Evaluations have no entries about the timesteps of episodes.
        """
        if self.has_episodes:
            return dict(entries)
        # rows have some 60 entries, and a generation of a cheap function takes microseconds
        known, result = self._known, {}
        for name, value in entries.items():
            if name in OF_EPISODES:
                continue
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
        is_one = not self.has_episodes and rest != name and rest.startswith(GROUPS)
        return f"{other}{rest}" if is_one else name


def _negated(value: float | None) -> float | None:
    return None if value is None else -value + 0.0  # 0, not -0


RETURNS = Vocabulary()


def inside(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of status.json or result.json, which state the goal, by `internal`."""
    goal: Goal = "minimise" if status.get("goal") == "minimise" else "maximise"
    return Vocabulary("value", goal).internal(Vocabulary("score").internal(status))


def counted(row: Mapping[str, Any], name: str) -> Any:
    """Return a count of a row of metrics by its name inside, whichever vocabulary the row has.

    Of a row without timesteps, each evaluation counts as one.
    """
    if name in TIMESTEPS and name not in row:
        name = TIMESTEPS[name]
    return row.get(name, row.get(COUNTED.get(name, name)))


def vocabulary_of(offers: Offers) -> Vocabulary:
    """Return the vocabulary of the tasks with these capabilities."""
    if offers.values or offers.goal is not None:
        return Vocabulary("value", offers.goal or "maximise")
    return Vocabulary("score" if offers.measures_centre else "return")
