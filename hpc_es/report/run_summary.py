"""The content of a report about one run, read from its directory.

A damaged or missing file becomes a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_es.config.resolved import plain_data
from hpc_es.core.data import ConfigData, JsonObject
from hpc_es.core.errors import READING, UserError, message_of
from hpc_es.core.run_files import LARGEST_CONFIG, exists, open_file, read_json, read_text
from hpc_es.core.vocabulary import counted
from hpc_es.report.curves import MEANS, RETURNS, REWARDS, SCORES, VALUES, Measure, RunCurves, load
from hpc_es.report.labels import flat
from hpc_es.storage.answers import NAMES, RESULT, Found, number, read_found
from hpc_es.storage.line_logs import FAILURES
from hpc_es.storage.metrics_log import each_row
from hpc_es.storage.status import FINISHED, STATUS, run_state

ACTIVITIES = ("environment", "policy", "update", "messages", "idle")
LOG_LINES = 12
LARGEST_LOG = 1 << 26  # bytes
MOST_TEXT = 6000  # characters of a traceback or a log in the report
MADE_WITH = "# made with:\n"


@dataclass(frozen=True)
class RunFailure:
    """An entry of failures.log: the first failure of its kind."""

    kind: str
    line: str
    details: str


@dataclass(frozen=True)
class Score:
    """The number by which runs are compared, and how it was measured."""

    value: float
    standard_error: float | None
    source: str
    is_final: bool  # of a finished run


@dataclass
class RunSummary:
    """State, config, metrics and files of a run directory, as far as they can be read."""

    path: Path
    config: ConfigData = field(default_factory=dict)
    state: JsonObject = field(default_factory=dict)  # of `run_state`
    curves: RunCurves | None = None
    result: JsonObject = field(default_factory=dict)
    first_row: JsonObject = field(default_factory=dict)
    last_row: JsonObject = field(default_factory=dict)
    found: Found = field(default_factory=Found)
    score: Score | None = None
    # by activity, mean over the ranks, summed over generations
    seconds: dict[str, float] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)  # the same of the rank with the most
    is_measured: bool = False  # whether a generation has a return, a value or a reward
    failed_jobs: int = 0
    failures: Sequence[RunFailure] = ()
    log: str = ""  # the last lines of log.txt
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # files that could not be read
    label: str = ""  # in a report

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.path.name)

    @property
    def measure(self) -> Measure:
        return self.curves.measure if self.curves else RETURNS

    @property
    def is_lower_better(self) -> bool:
        """Whether a lower score is better."""
        return self.found.goal == "minimise"

    @property
    def task_config(self) -> ConfigData:
        """The config with the task of this repetition, if the repetitions have different ones."""
        return self.curves.config if self.curves else self.config

    @property
    def busy(self) -> float | None:
        """Share of the time in which ranks did not wait, from 0 to 1."""
        total = sum(self.seconds.values())
        return 1 - self.seconds["idle"] / total if total else None


def read_run(path: Path) -> RunSummary:
    """Read a run directory."""
    run = RunSummary(path)
    run.state = run_state(path)

    def read(action: Callable[[], None]) -> None:
        try:
            action()
        except (UserError, *READING) as error:
            run.notes.append(message_of(error))

    read(lambda: _read_config(run))
    read(lambda: _read_metrics(run))
    if run.is_measured and not run.notes:
        read(lambda: setattr(run, "curves", load(path)))
    read(lambda: _read_result(run))
    read(lambda: setattr(run, "failures", _read_failures(path / FAILURES)))
    read(lambda: setattr(run, "log", _tail(path / "log.txt")))
    read(lambda: setattr(run, "found", read_found(path)))
    if run.measure is VALUES and run.found.answer.x is None:
        read(lambda: _read_best_vector(run))
    run.score = _score(run)
    return run


def _read_config(run: RunSummary) -> None:
    file = run.path / "config.yaml"
    if exists(file):
        text = read_text(file, most=LARGEST_CONFIG)
        config = plain_data(text)
        flat(config)  # as the sections of a report write it
        run.config = config
        lines = text.partition(MADE_WITH)[2].splitlines()
        pairs = (line.lstrip("# ").partition(": ") for line in lines if line.startswith("#   "))
        run.versions = {name: value for name, _, value in pairs}


def _read_metrics(run: RunSummary) -> None:
    run.seconds = dict.fromkeys(ACTIVITIES, 0.0)
    run.worst = dict.fromkeys(ACTIVITIES, 0.0)
    for row in each_row(run.path):
        run.first_row = run.first_row or row
        run.last_row = row
        run.is_measured |= any(
            row.get(measure.y) is not None for measure in (RETURNS, MEANS, SCORES, VALUES, REWARDS)
        )
        run.failed_jobs += int(counted(row, "failed_episodes") or 0)
        for name in ACTIVITIES:
            run.seconds[name] += float(row.get(f"time_{name}_mean") or 0.0)
            run.worst[name] += float(row.get(f"time_{name}_worst") or 0.0)


def _read_result(run: RunSummary) -> None:
    file = run.path / RESULT
    if exists(file):
        run.result = read_json(file)
    elif (run.path / STATUS).exists():
        run.result = read_json(run.path / STATUS, LARGEST_CONFIG)
    if not isinstance(run.result, dict):
        run.result = {}
        raise TypeError(f"{file}: expected a JSON object")


def _read_best_vector(run: RunSummary) -> None:
    """Read the best vector from the newest checkpoint.

    For a run of an earlier version that has not finished.
    """
    from hpc_es.report.export import describe_best
    from hpc_es.storage.checkpoint import load as load_checkpoint
    from hpc_es.storage.checkpoint_directory import find

    snapshot = load_checkpoint(find(run.path, full=False))
    best = describe_best(snapshot.outcome, run.config).get("best_vector", {})
    if best.get("value") == run.found.answer.value:
        run.found = replace(run.found, answer=replace(run.found.answer, x=best.get("x")))


def _score(run: RunSummary) -> Score | None:
    """Return the answer of a run as its score.

    Before an evaluation of a policy, it is the mean of the last population. A vector that is
    infeasible has a value that cannot be compared, so it is no final score.
    """
    is_final = run.state.get("state") == FINISHED
    answer = run.found.answer
    if answer.value is not None:
        is_feasible = answer.is_comparable
        source = NAMES[answer.kind] if is_feasible else f"{NAMES[answer.kind]}, infeasible"
        return Score(answer.value, answer.standard_error, source, is_final and is_feasible)
    measure = run.measure
    mean = number(run.last_row.get(measure.y)) if measure in (RETURNS, SCORES, MEANS) else None
    return None if mean is None else Score(mean, None, "last population", is_final)


def _read_failures(file: Path) -> list[RunFailure]:
    """Return the entries of failures.log, [] without the file; see FailuresLog."""
    if not exists(file):
        return []
    entries = re.split(
        r"^=== ", read_text(file, errors="replace", most=LARGEST_LOG), flags=re.MULTILINE
    )[1:]
    result = []
    for entry in entries:
        kind, _, rest = entry.partition("\n")
        line, _, details = rest.partition("\n")
        text = "\n".join(part.removeprefix("    ") for part in details.rstrip().splitlines())
        result.append(RunFailure(kind, line, shortened(text)))
    return result


def _tail(file: Path) -> str:
    """Return the last lines of a log, "" if there is none."""
    if not exists(file):
        return ""
    with open_file(file) as content:
        content.seek(max(content.seek(0, 2) - 8 * MOST_TEXT, 0))
        lines = content.read().decode("utf-8", "replace").splitlines()
    return shortened("\n".join(lines[-LOG_LINES:]))


def shortened(text: str) -> str:
    """Return the text without its middle if it is longer than MOST_TEXT."""
    half = MOST_TEXT // 2
    return text if len(text) <= MOST_TEXT else f"{text[:half]}\n  ...\n{text[-half:]}"
