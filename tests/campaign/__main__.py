"""`python -m tests.campaign --minutes N`: random events until the time is over; status 1 if any was
wrong or hung.

The same command continues with the next case of --out. `--case N` plays one case again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.campaign.case import HUNG, WRONG, Record, play
from tests.campaign.diary import Diary


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    p.add_argument(
        "--minutes", type=float, help="end after so long (default: 10, where --events is not given)"
    )
    p.add_argument(
        "--events", type=int, help="end after so many, with those that --out has already"
    )
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--out", type=Path, default=Path("runs/campaign"), help="events.jsonl, and what went wrong"
    )
    p.add_argument("--delayed", action="store_true", help="runs with algorithm.delay only")
    p.add_argument(
        "--only", default="", metavar="TEXT", help="events whose kind begins with it, such as kill"
    )
    p.add_argument("--case", type=int, help="play this case only, and leave events.jsonl as it is")
    return p


def main() -> int:
    """Play cases, print their outcomes, and return the exit status."""
    options = parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        # so that no job and no mounted disk is left
        signal.signal(number, signal.default_int_handler)
    out: Path = options.out.resolve()
    if options.case is not None:
        records = play(options.seed, options.case, out, options.delayed, options.only)
        for record in records:
            sys.stdout.write(f"{record}\n")
        return int(records[-1].verdict in {WRONG, HUNG})
    diary = Diary(out, options.seed)
    minutes = options.minutes if options.minutes or options.events else 10
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    case = 0
    while time.monotonic() < until and diary.events < (options.events or float("inf")):
        if case not in diary.cases:
            diary.write(case, play(options.seed, case, out, options.delayed, options.only))
            say(options, case, out, diary.cases[case])
        case += 1
    sys.stdout.write(diary.table() + "\n")
    return int(bool(diary.failures))


def say(options: argparse.Namespace, case: int, out: Path, records: list[Record]) -> None:
    """Print a line per case and, if it failed, the reason and the command that repeats it."""
    message = ", ".join(f"{record.kind} {record.verdict}" for record in records)
    sys.stdout.write(f"case {case} ({records[0].family}): {message}\n")
    if records[-1].verdict in {WRONG, HUNG}:
        only = f" --only '{options.only}'" if options.only else ""
        chosen = f"--seed {options.seed}{' --delayed' * options.delayed}{only} --case {case}"
        again = f"python -m tests.campaign {chosen} --out {out.parent / 'again'}"
        sys.stdout.write(f"{records[-1].why}\nkept in {out}/case_{case:05d}; again: {again}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
