"""events.jsonl: the records of all cases that were played to their end,
and the table that is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.campaign.case import END, HUNG, LATE, WRONG, Record
from tests.campaign.kinds import KINDS


class Diary:
    """The records of a campaign, without an incomplete last line.

    Raises ValueError for another seed.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._path, self._seed = directory / "events.jsonl", seed
        self.cases: dict[int, list[Record]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        lines = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
        self._path.write_text("".join(f"{line}\n" for line in lines))
        for line in lines:
            message = json.loads(line)
            if message["seed"] != seed:
                raise ValueError(f"{self._path} is of --seed {message['seed']}, not {seed}")
            self.cases[message["case"]] = [Record(**record) for record in message["events"]]

    def write(self, case: int, records: Sequence[Record]) -> None:
        """Add a case."""
        self.cases[case] = list(records)
        with self._path.open("a") as file:
            events = [asdict(record) for record in records]
            file.write(json.dumps({"seed": self._seed, "case": case, "events": events}) + "\n")

    @property
    def records(self) -> list[Record]:
        """Records by case."""
        return [record for case in sorted(self.cases) for record in self.cases[case]]

    @property
    def events(self) -> int:
        """Number of events that occurred during runs."""
        return sum(record.kind != END and record.verdict != LATE for record in self.records)

    @property
    def failures(self) -> list[Record]:
        """Findings: wrong results and hanging jobs."""
        return [record for record in self.records if record.verdict in {WRONG, HUNG}]

    def table(self) -> str:
        """A line per kind; `late` ones, whose run had already finished, are not events."""
        lines = [f"{'kind':<18}{'events':>8}{'wrong':>8}{'hung':>8}{'late':>8}"]
        for kind in [*KINDS, END]:
            lines.append(_line(kind, [record for record in self.records if record.kind == kind]))
        lines.append(
            _line("all but the end", [record for record in self.records if record.kind != END])
        )
        return "\n".join(lines)


def _line(name: str, records: Sequence[Record]) -> str:
    late, wrong, hung = (
        sum(record.verdict == verdict for record in records) for verdict in (LATE, WRONG, HUNG)
    )
    return f"{name:<18}{len(records) - late:>8}{wrong:>8}{hung:>8}{late:>8}"
