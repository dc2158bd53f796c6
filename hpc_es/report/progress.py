"""Progress of a run: a live display on a terminal, plain lines elsewhere, and always log.txt."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hpc_es.core.declarations import Metric
from hpc_es.core.run_files import open_file
from hpc_es.core.streams import is_terminal, say
from hpc_es.core.vocabulary import RETURNS, Vocabulary
from hpc_es.storage.metrics_log import Number, Row

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from hpc_es.config.schema import Stop

Info = Mapping[str, object]

SEPARATOR = "  "  # of the entries of a line
FIRST_LEFT_OUT = ("time", "elapsed")  # of a line that is longer than the terminal is wide
SPLIT = ("environment", "policy", "update", "messages", "idle")
SECONDS_BETWEEN_LINES = 1.0
ROWS_OF_RATE = 20  # the time left is computed from the speed of the last rows


NO_METRICS: Mapping[str, Metric] = {}


class Progress:
    """Print the progress of a run on rank 0.

    Use it as a context manager, or call `close`, so that the terminal's cursor is restored. A full
    disk or a closed terminal never ends the run: output that cannot be written is dropped. Rows
    have the names and signs of `vocabulary`, and are printed in its words. `metrics` are those
    that the algorithm and the task declare. Of several `objectives` the best ones of the front are
    printed, by name, and the means if there is no front.
    """

    def __init__(
        self,
        run_dir: Path | None,
        stop: Stop,
        verbose: bool = True,
        *,
        vocabulary: Vocabulary = RETURNS,
        metrics: Mapping[str, Metric] = NO_METRICS,
        objectives: Sequence[str] = (),
    ) -> None:
        self._log = run_dir / "log.txt" if run_dir is not None else None
        self._stop = stop
        self._verbose = verbose  # False: only log.txt
        self._vocabulary, self._metrics = vocabulary, metrics
        self._objectives = objectives if len(objectives) > 1 else ()
        self._info: Info = {}
        # replaced, not changed: the thread of the live display reads it
        self._rows: tuple[Row, ...] = ()
        self._last_evaluation: Number = None
        self._best_evaluation: Number = None
        self._is_noisy = False  # noise was measured, of an objective
        self._updated = self._printed = time.monotonic()  # last row, last printed row
        self._pending = False  # the newest row has not been printed
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, info: Info) -> None:
        """Print the entries of `info` that are not None, and start the live display, if any.

        They are in their order. `best_evaluation` is the best evaluation so far of a resumed run.
        """
        self._info = info
        best = info.get("best_evaluation")
        self._best_evaluation = best if isinstance(best, float | int) else None
        self._updated = time.monotonic()
        # The best evaluation is one of the centre, not the best value; each of several objectives
        # has its own goal.
        hidden = {"best_evaluation"} if self._vocabulary.has_values else set()
        if self._objectives:
            hidden.add("goal")
        visible = {
            key: value for key, value in info.items() if value is not None and key not in hidden
        }
        entries = [f"{key.replace('_', ' ')} {value}" for key, value in visible.items()]
        self.message("  ".join(entries))
        if self._verbose and on_terminal():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                self,
                console=Console(stderr=True),
                refresh_per_second=2,
                # a stdout redirected to a file stays there
                redirect_stdout=is_terminal(sys.stdout),
            )
            self._live.start()

    def update(
        self, row: Row, best_evaluation: float | None = None, *, is_noisy: bool = False
    ) -> None:
        """Take the row of a generation, and print it if it is due.

        That is the first one, one with an evaluation, or one after more than a second.

        Args:
            row: of the metrics.
            best_evaluation: the best evaluation of the centre so far; None: that of the rows.
            is_noisy: whether noise was measured, so that best values are good luck and not shown.
        """
        self._is_noisy = is_noisy
        self._rows = (*self._rows, row)[-ROWS_OF_RATE:]
        self._updated = time.monotonic()
        has_evaluation = self._of(row, "evaluation_episodes")
        evaluation = self._of(row, "evaluation_return_mean") if has_evaluation else None
        if evaluation is not None and not math.isnan(evaluation):
            self._last_evaluation = evaluation
            better = max if self._vocabulary.sign > 0 else min
            best = self._best_evaluation
            best = evaluation if best is None else better(best, evaluation)
            self._best_evaluation = best if best_evaluation is None else best_evaluation
        self._pending = True
        first = len(self._rows) == 1
        if first or has_evaluation or self._updated - self._printed >= SECONDS_BETWEEN_LINES:
            self._print_row()

    def message(self, text: str) -> None:
        """Print a message above the live display, or as a line."""
        if self._live is not None:
            with contextlib.suppress(Exception):  # of a terminal that is gone
                self._live.console.print(_text(text), soft_wrap=True)
        elif self._verbose:
            say(f"{text}\n")
        self._append(text)

    def finish(self, text: str) -> None:
        """Print the last row unless it is printed already, then `text`.

        The live display ends.
        """
        self.close()
        self.message(text)

    def close(self) -> None:
        """End the live display; further calls do nothing."""
        if self._pending:
            self._print_row()
        if self._live is not None:
            with contextlib.suppress(Exception):  # of a terminal that is gone
                self._live.stop()
            self._live = None

    def _print_row(self) -> None:
        self._pending = False
        self._printed = self._updated
        entries = [f"{name} {value}" for name, value in self.entries(0.0)]
        if self._live is None and self._verbose:
            say(f"{SEPARATOR.join(fitting(entries, _columns()))}\n")
        self._append(SEPARATOR.join(entries))

    def _append(self, text: str) -> None:
        if self._log is None:
            return
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            with open_file(self._log, "ab") as file:
                file.writelines(f"{stamp}  {line}\n".encode() for line in text.splitlines() or [""])
        except OSError:
            return  # a full disk is reported by the files that must be written

    def entries(self, since_row_seconds: float) -> list[tuple[str, str]]:
        """Return the newest row as (name, text).

        `since_row_seconds` have passed since it arrived.
        """
        row = self._rows[-1]
        total = f" of {self._stop.generations}" if self._stop.generations is not None else ""
        left = seconds_left(self._stop, self._rows, self._vocabulary)
        elapsed = (row.get("seconds_total") or 0.0) + since_row_seconds
        failures = self._of(row, "failed_episodes")
        failed = self._vocabulary.name("failed_episodes").replace("_", " ")
        entries = [
            ("generation", f"{(row['generation'] or 0) + 1}{total}"),
            *self._result_entries(row),
            ("time", split(row, self._vocabulary)),
            (failed, number(failures) if failures else None),
            ("elapsed", clock(elapsed)),
            ("left", clock(max(left - since_row_seconds, 0.0)) if left is not None else None),
        ]
        return [(name, value) for name, value in entries if value]

    def _of(self, row: Row, name: str) -> Number:
        """Return an entry by its name inside."""
        return row.get(self._vocabulary.name(name))

    def _result_entries(self, row: Row) -> list[tuple[str, str | None]]:
        if "best_reward" in row:
            return self._search_entries(row)
        if self._objectives and "front_size" in row:
            best = [(f"best {name}", number(row.get(f"best_{name}"))) for name in self._objectives]
            return [*self._declared_entries(row), *best, *self._evaluation_counts(row)]
        if self._objectives:
            means = [(name, number(row.get(f"objective_{name}"))) for name in self._objectives]
            return [*means, *self._declared_entries(row), *self._evaluation_counts(row)]
        has_values = self._vocabulary.has_values
        return self._objective_entries(row) if has_values else self._centre_entries(row)

    def _objective_entries(self, row: Row) -> list[tuple[str, str | None]]:
        """Return the entries of an objective: its values as it returns them, and evaluations."""
        centre = None if self._last_evaluation is None else number(self._last_evaluation)
        if centre is not None and not self._is_noisy:
            centre += f" (best {number(self._best_evaluation)})"
        best_value = None if self._is_noisy else number(row.get("best_value"))
        violation, share = row.get("best_violation"), row.get("feasible_share")
        return [
            ("value", f"{number(row.get('value_mean'))} ± {number(row.get('value_std'))}"),
            ("best value", best_value),
            ("violation", number(violation) if violation else None),
            ("feasible", f"{share:.0%}" if share is not None and not math.isnan(share) else None),
            *self._declared_entries(row),
            ("value of centre", centre),
            *self._evaluation_counts(row),
        ]

    def _declared_entries(self, row: Row) -> list[tuple[str, str | None]]:
        """Return the metrics that declare a short name; those that are not known are left out."""
        shown = [(row.get(name), m.short) for name, m in self._metrics.items() if m.short]
        return [
            (short, None if value is None or math.isnan(value) else number(value))
            for value, short in shown
        ]

    def _search_entries(self, row: Row) -> list[tuple[str, str | None]]:
        """Return the entries of a program search; NPE is the number of programs executed."""
        executed, seconds = row.get("episodes_this_generation"), row.get("seconds_this_generation")
        return [
            ("best reward", number(row["best_reward"])),
            ("correct program", "found" if row.get("solved") else None),
            *self._declared_entries(row),
            ("NPE", number(row.get("episodes_total"))),
            (
                "programs/s",
                number(executed / seconds) if executed is not None and seconds else None,
            ),
        ]

    def _centre_entries(self, row: Row) -> list[tuple[str, str | None]]:
        """Return the entries of a policy or model.

        They are returns and timesteps, or scores and evaluations.
        """
        evaluation = None
        if self._last_evaluation is not None:
            evaluation = f"{number(self._last_evaluation)} (best {number(self._best_evaluation)})"
        timesteps = [
            ("timesteps", number(row.get("timesteps_total"))),
            ("steps/s", number(row.get("steps_per_second"))),
        ]
        mean, std = self._of(row, "return_mean"), self._of(row, "return_std")
        noun, has_episodes = self._vocabulary.noun, self._vocabulary.has_episodes
        return [
            (noun, f"{number(mean)} ± {number(std)}"),
            *self._declared_entries(row),
            ("evaluation" if has_episodes else f"{noun} of centre", evaluation),
            *(timesteps if has_episodes else self._evaluation_counts(row)),
        ]

    def _evaluation_counts(self, row: Row) -> list[tuple[str, str | None]]:
        evaluations = self._of(row, "episodes_this_generation")
        seconds = row.get("seconds_this_generation")
        speed = evaluations / seconds if evaluations is not None and seconds else None
        return [
            ("evaluations", number(self._of(row, "episodes_total"))),
            ("evaluations/s", None if speed is None else number(speed)),
        ]

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        waiting = time.monotonic() - self._updated
        entries = self.entries(waiting) if self._rows else [("first generation", clock(waiting))]
        for name, value in [("run", str(self._info.get("name", ""))), *entries]:
            table.add_row(_text(name, "dim"), _text(value))
        return table


def on_terminal() -> bool:
    """Return whether stderr can show a live display."""
    capable = os.environ.get("TERM", "") not in ("", "dumb", "unknown") and not os.environ.get("CI")
    return capable and is_terminal(sys.stderr)


def _columns() -> int | None:
    """Return the width of the terminal that lines are printed on.

    None if they go elsewhere, such as into a file.
    """
    stream = sys.stdout
    if stream is None or not is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a stream of a notebook or of a test
        return None


def fitting(entries: Sequence[str], columns: int | None) -> list[str]:
    """Return the entries of a line that fit this width.

    First those of FIRST_LEFT_OUT are left out, then the last ones.
    """
    kept = list(entries)
    while columns and len(kept) > 1 and len(SEPARATOR.join(kept)) > columns:
        left_out = next(
            (entry for name in FIRST_LEFT_OUT for entry in kept if entry.startswith(f"{name} ")),
            kept[-1],
        )
        kept.remove(left_out)
    return kept


def seconds_left(stop: Stop, rows: Sequence[Row], vocabulary: Vocabulary = RETURNS) -> float | None:
    """Return the seconds until the first limit of `stop` is reached; None without a limit.

    It is at the mean speed of `rows`. Earlier rows do not count, since a run may have been resumed
    on another number of ranks.
    """
    row = rows[-1]
    seconds = _mean(rows, "seconds_this_generation")
    left = []
    if stop.generations is not None:
        left.append((stop.generations - 1 - (row["generation"] or 0)) * seconds)
    for name, limit in (("timesteps", stop.timesteps), ("episodes", stop.episodes)):
        speed = _mean(rows, vocabulary.name(f"{name}_this_generation"))
        if limit is not None and speed:
            used = row.get(vocabulary.name(f"{name}_total")) or 0
            left.append((limit - used) / speed * seconds)
    if stop.seconds is not None:
        left.append(stop.seconds - (row.get("seconds_total") or 0.0))
    return max(min(left), 0.0) if left else None


def split(row: Row, vocabulary: Vocabulary = RETURNS) -> str | None:
    """Return the mean share of the ranks' time per activity, in percent, or None.

    None if nothing was measured.
    """
    seconds = {name: row.get(f"time_{name}_mean") or 0.0 for name in SPLIT}
    total = sum(seconds.values())
    shown = vocabulary.activities(seconds)
    return (
        " ".join(f"{text} {100 * seconds[name] / total:.0f}%" for name, text in shown.items())
        if total > 0
        else None
    )


def number(value: Number) -> str:
    """Return a number with four digits and no exponent; a dash for None and NaN.

    It is in units of M or G from a million.
    """
    if value is None or math.isnan(value):
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.2f}{letter}"
    # 0, not -0
    return f"{value:.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value + 0.0:.4g}"


def clock(seconds: float) -> str:
    """Format seconds as 1:02:03, or as 2:03 below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _mean(rows: Sequence[Row], key: str) -> float:
    return sum(row.get(key) or 0.0 for row in rows) / len(rows)


def _text(text: str, style: str = "") -> Text:
    """Return literal text; in a plain string rich reads [brackets] as markup."""
    from rich.text import Text

    return Text(text, style)
