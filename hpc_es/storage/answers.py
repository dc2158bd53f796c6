"""What a run has found: its answer and its best evaluation, in one form for every reader.

The form is that of every kind of run. `Found` is written into result.json, the lines of repetitions
and status.json, and `read_found` reads it back for one run, whether or not it has finished.
Commands, reports, plots and tunings take the numbers from there.

    goal              minimise or maximise
    answer            kind, value, x, standard_error, evaluations; with constraints also violation
    best_evaluation   value, x, generation, job; with constraints also violation

| kind | answer |
|---|---|
| evaluation | an objective: the best of all evaluated vectors |
| mean | an objective with measured noise: the centre at the end, and the mean of its evaluations |
| centre | a policy or vector with returns: the parameters with the best evaluation |
| score | a model: the parameters with the best evaluation |
| member | a search for programs: the program with the best reward |
| front | several objectives: the hypervolume of the front, whose members are in front.csv |

The evaluations of a centre include the final one. Values have the sign of the user's function:
minimised ones are as the function returned them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from hpc_es.config.registry import is_user_kind
from hpc_es.config.resolved import plain_data
from hpc_es.core.data import ConfigData, Json, JsonObject
from hpc_es.core.errors import ConfigError, visible, visible_lines
from hpc_es.core.quantities import Goal
from hpc_es.core.run_files import LARGEST_CONFIG, read_json, read_text
from hpc_es.storage.metrics_log import last_row
from hpc_es.storage.status import FINISHED, STATUS, run_state

Kind = Literal["centre", "score", "evaluation", "mean", "member", "front"]

RESULT = "result.json"  # of one run, in its directory
MOST_NUMBERS = 24  # of a vector in a text
LARGEST_X = 1000  # numbers of a vector that is listed; a longer one is in the checkpoints only
CENTRE_JOB = -1  # in place of the number of a job: an evaluation of the centre
# why some runs are not compared
MIXED = "values are noisy: a best value is good luck, and cannot be compared with the mean of a centre; hpc-es eval RUN gives any run a mean"
NOISE_MEASURED = "noise_measured"  # in status.json: true from then on
KEYS = ("goal", "answer", "best_evaluation")
NAMES: Mapping[Kind, str] = {
    "centre": "best return",
    "score": "best score",
    "evaluation": "best value",
    "mean": "mean of the centre",
    "member": "best reward",
    "front": "hypervolume",
}


@dataclass(frozen=True)
class Answer:
    """What the user takes from a run."""

    kind: Kind
    value: float | None = None  # None: nothing has been evaluated successfully
    # A list, parameters by name, or the text of a program; None: there is none, or a network has
    # the parameters.
    x: Json = None
    standard_error: float | None = None  # of the value; None: unknown, as after one evaluation
    # that the value is the mean of: episodes of a policy, 1 for an objective; members of a front
    evaluations: int = 0
    # sum of the positive constraint values; None: there are no constraints
    violation: float | None = None

    @property
    def is_evaluated_centre(self) -> bool:
        """Whether it is the centre with the best evaluation, rather than the best candidate."""
        return self.kind in ("centre", "score")

    @property
    def is_comparable(self) -> bool:
        """Whether its value can be compared with that of other runs: known, and x is feasible."""
        return self.value is not None and not self.violation


@dataclass(frozen=True)
class BestEvaluation:
    """The best evaluation of a run; numbers that are not recorded are None."""

    value: float | None = None
    x: Json = None
    generation: int | None = None
    job: int | None = None
    violation: float | None = None


@dataclass(frozen=True)
class Found:
    """Answer and best evaluation of a run, and the direction in which values are better."""

    goal: Goal = "maximise"
    answer: Answer = field(default_factory=lambda: Answer("centre"))
    best_evaluation: BestEvaluation = field(default_factory=BestEvaluation)

    @property
    def sign(self) -> float:
        """The factor that makes higher values better."""
        return -1.0 if self.goal == "minimise" else 1.0

    @property
    def rank(self) -> tuple[bool, float, float]:
        """A key that is larger for a better answer; feasible vectors are better than others."""
        answer = self.answer
        value = -math.inf if answer.value is None else self.sign * answer.value
        return answer.value is not None, -(answer.violation or 0.0), value

    def data(self) -> JsonObject:
        """Return the entries of result.json and status.json."""
        return {
            "goal": self.goal,
            "answer": found_entry(self.answer),
            "best_evaluation": found_entry(self.best_evaluation),
        }


def found_entry(found: Answer | BestEvaluation) -> JsonObject:
    """Return an entry of result.json, which has no violation without constraints."""
    return {
        name: value
        for name, value in vars(found).items()
        if name != "violation" or value is not None
    }


def best_of(found: Sequence[Found]) -> int | None:
    """Return the index of the best answer, of equal ones the first; None if no run has a value.

    If some answers are means, since noise was measured, the best one is among these: best values of
    other runs are good luck.
    """
    known = [index for index, one in enumerate(found) if one.answer.value is not None]
    known = [index for index in known if found[index].answer.kind == "mean"] or known
    return max(known, key=lambda index: found[index].rank, default=None)


# Reading.


def read_found(run: Path) -> Found:
    """Return what a run has found: at its end, or so far if it has not finished.

    A finished run has it in result.json, any run in status.json. For runs of earlier versions it is
    derived from other entries of these files and from the last row of metrics.jsonl.
    """
    status, result = read_object(run / STATUS), read_object(run / RESULT)
    if status and result:
        is_older = (number(result.get("generations")) or 0) < (
            number(status.get("generation")) or 0
        )
        if ("generations" in result and is_older) or run_state(run)["state"] != FINISHED:
            result = {}  # of an earlier end, since which the run was continued
    for values in (result, status):
        if "answer" in values:
            return found_in(values)
    goal = goal_of(read_config(run))
    if result:
        return found_in(result, goal)
    row = last_row(run)
    values = {
        name: status.get(name) for name in ("best_return", "final_return_mean", "final_return_std")
    }
    if row.get("best_value") is not None:
        values["best"] = {
            "value": row["best_value"],
            "x": None,
            "violation": row.get("best_violation"),
        }
    elif row.get("best_reward") is not None:
        values["best_reward"] = row["best_reward"]
    return found_in(values, goal)


def found_in(values: Mapping[str, Any], goal: Goal = "maximise") -> Found:
    """Return what result.json, a line of repetitions or status.json says.

    Entries of another type count as missing. `goal` is that of the config, for lines of earlier
    versions, which have neither it nor the answer.
    """
    goal = values["goal"] if values.get("goal") in get_args(Goal) else goal
    answer, best = values.get("answer"), values.get("best_evaluation")
    if not isinstance(answer, dict) or answer.get("kind") not in get_args(Kind):
        return _found_before(values, goal)
    best = best if isinstance(best, dict) else {}
    return Found(
        goal,
        Answer(
            cast(Kind, answer["kind"]),
            number(answer.get("value")),
            answer.get("x"),
            number(answer.get("standard_error")),
            int(number(answer.get("evaluations")) or 0),
            number(answer.get("violation")),
        ),
        BestEvaluation(
            number(best.get("value")),
            best.get("x"),
            _whole(best.get("generation")),
            _whole(best.get("job")),
            number(best.get("violation")),
        ),
    )


def _found_before(values: Mapping[str, Any], goal: Goal) -> Found:
    """Return what the files of a version before `answer` say.

    That is `best`, `best_program`, or the returns of a policy.
    """
    best = values.get("best")
    if isinstance(best, dict):
        value, x, violation = (
            number(best.get("value")),
            best.get("x"),
            number(best.get("violation")),
        )
        where = BestEvaluation(
            value, x, _whole(best.get("generation")), _whole(best.get("job")), violation
        )
        return Found(
            goal, Answer("evaluation", value, x, None, int(value is not None), violation), where
        )
    if "best_reward" in values:
        value, x = number(values["best_reward"]), values.get("best_program")
        answer = Answer("member", value, x, None, int(value is not None))
        return Found("maximise", answer, BestEvaluation(value, x))
    if goal == "minimise":  # an objective without a successful evaluation
        return Found(goal, Answer("evaluation"))
    final = values.get("final_return", values.get("final_return_mean"))
    known = [
        value for value in map(number, (values.get("best_return"), final)) if value is not None
    ]
    value = max(known, default=None)
    return Found("maximise", Answer("centre", value), BestEvaluation(value))


def stated_goal(config: ConfigData) -> Goal | None:
    """Return the goal of the objective of a config as plain data.

    It is None for other tasks, whose returns are maximised. What the options of a custom task mean
    is not known here; results of its runs have the goal that it declares.
    """
    task = config.get("task")
    if not isinstance(task, dict) or is_user_kind(task.get("kind")):
        return None
    goal = task.get("goal")
    return cast(Goal, goal) if goal in get_args(Goal) else None


def goal_of(config: ConfigData) -> Goal:
    """Return the goal of a config as plain data; returns and rewards are maximised."""
    return stated_goal(config) or "maximise"


def read_config(run: Path) -> ConfigData:
    """Return config.yaml of a run; {} if it is missing or damaged."""
    try:
        return plain_data(read_text(run / "config.yaml", most=LARGEST_CONFIG))
    except (OSError, ValueError, ConfigError):
        return {}


def read_object(file: Path) -> JsonObject:
    """Return a JSON object; {} if the file is missing or holds something else."""
    try:
        values = read_json(file)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        known = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return known if math.isfinite(known) else None


def _whole(value: object) -> int | None:
    return None if (known := number(value)) is None else int(known)


# Statistics over runs.


def comparable_values(found: Iterable[Found]) -> list[float]:
    """Return the values of the answers that can be compared: known ones, of feasible vectors."""
    return [
        one.answer.value
        for one in found
        if one.answer.is_comparable and one.answer.value is not None
    ]


# Text.


def answer_text(answer: Answer) -> str:
    """Return the value of an answer, with its violation if it is infeasible."""
    violation = f" (violation {answer.violation:.6g})" if answer.violation else ""
    if answer.value is None:
        return "-"
    is_mean = answer.kind == "mean" and answer.standard_error is not None
    error = f" ± {answer.standard_error:.2g}" if is_mean else ""
    return f"{answer.value:.6g}{error}{violation}"


def x_text(x: Json, most: int) -> str:
    """Return a vector, named parameters or a program as text.

    Of a vector at most this many numbers are shown.
    """
    if isinstance(x, Mapping):
        parts = [f"{visible(str(name))} = {_element_text(value)}" for name, value in x.items()]
    elif isinstance(x, str):
        return visible_lines(x)
    else:
        parts = [_element_text(value) for value in x] if isinstance(x, list) else []
    return ", ".join(parts[:most]) + (f", ... ({len(parts)} numbers)" if len(parts) > most else "")


def _element_text(value: Json) -> str:
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else visible(value)
        if isinstance(value, str)
        else json.dumps(value)
    )
