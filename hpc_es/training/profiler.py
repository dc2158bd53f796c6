"""The profile of a run, with `report.profile`: the time of each function in evaluations, by rank.

Every rank profiles its evaluations with cProfile and writes profile/rank_NNNN.pstats at the end of
the run. Rank 0 writes the sums over all ranks to profile.txt. A profile covers the run since its
last start.
"""

from __future__ import annotations

import cProfile
import json
import marshal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hpc_es.core.data import Chunk, Outcome, Poll
from hpc_es.core.errors import RunError, is_user_file
from hpc_es.mpi.world import World
from hpc_es.storage.files import replace, write_text, writing
from hpc_es.training.generation import Generation

PROFILE, FOLDER = "profile.txt", "profile"
# functions with the longest times that a rank sends to rank 0, for each order and for the user's
# code
MOST_SENT = 100
MOST_LISTED = 25  # functions in a table
MOST_RANKS = 64  # listed one by one

Function = tuple[str, int, str]  # file, line and name, as in the files of pstats


@dataclass(frozen=True)
class FunctionTime:
    """The calls and seconds of a function on one rank, or on all."""

    calls: int
    own: float  # seconds without the functions that it called
    cumulative: float  # with them


@dataclass(frozen=True)
class RankProfile:
    """Chunks, seconds and functions of one rank, as sent to rank 0."""

    rank: int
    host: str
    chunks: int
    evaluating: float  # seconds in evaluations
    total: float  # seconds since the start
    functions: Mapping[Function, FunctionTime]

    def to_json(self) -> str:
        """Return the profile as JSON, for `from_json`."""
        functions = [[*key, *asdict(value).values()] for key, value in self.functions.items()]
        return json.dumps({**vars(self), "functions": functions})

    @staticmethod
    def from_json(text: str) -> RankProfile:
        """Return the profile from the result of `to_json`."""
        values = json.loads(text)
        entries = values.pop("functions")
        return RankProfile(
            functions={(f, n, name): FunctionTime(*t) for f, n, name, *t in entries}, **values
        )


class Profiler:
    """Profiles the evaluations of this rank."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world, self._directory = world, directory
        self._profile = cProfile.Profile()
        self._chunks, self._evaluating, self._started = 0, 0.0, time.perf_counter()

    def evaluate(self, generation: Generation, chunk: Chunk, poll: Poll) -> Outcome:
        """Evaluate a chunk and add its functions to the profile."""
        since = time.perf_counter()
        self._profile.enable()
        try:
            return generation.evaluate(chunk, poll)
        finally:
            self._profile.disable()
            self._chunks += 1
            self._evaluating += time.perf_counter() - since

    def write(self, message: Callable[[str], object]) -> None:
        """Write the profile of this rank, and on rank 0 the common one; every rank calls this.

        Rank 0 calls `message` with the path of the profile, and with a warning for each rank that
        cannot write.
        """
        world, error = self._world, ""
        self._profile.create_stats()
        try:
            self._write_own()
        except RunError as reason:
            error = f"WARNING: rank {world.rank} wrote no profile: {reason}"
        own = json.dumps([error, self._sent().to_json()]).encode()
        gathered = world.gather(np.frombuffer(own, np.uint8))
        if gathered is None:
            return
        errors, profiles = zip(*(json.loads(item.tobytes()) for item in gathered), strict=True)
        path = self._directory / PROFILE
        try:
            write_text(path, profile_text([RankProfile.from_json(text) for text in profiles]))
            errors = (*errors, f"time by function: {path}")
        except RunError as reason:
            errors = (*errors, f"WARNING: no profile was written: {reason}")
        for text in filter(None, errors):
            message(text)

    def _write_own(self) -> None:
        path = self._directory / FOLDER / f"rank_{self._world.rank:04d}.pstats"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        replace(path, [marshal.dumps(self._profile.stats)])

    def _sent(self) -> RankProfile:
        """Return the profile of this rank, with the functions that take the longest times."""
        functions = {
            key: FunctionTime(calls, own, cumulative)
            for key, (_, calls, own, cumulative, _) in self._profile.stats.items()
        }
        users = {key: value for key, value in functions.items() if is_user_file(key[0])}
        chosen = [
            *_longest(functions, "own"),
            *_longest(functions, "cumulative"),
            *_longest(users, "cumulative"),
        ]
        sent = {key: functions[key] for key in chosen}
        total = time.perf_counter() - self._started
        return RankProfile(
            self._world.rank, self._world.host, self._chunks, self._evaluating, total, sent
        )


def _longest(
    functions: Mapping[Function, FunctionTime], order: str, most: int = MOST_SENT
) -> list[Function]:
    """Return the functions with the longest times, by the field `order`."""
    return sorted(functions, key=lambda key: (-getattr(functions[key], order), key))[:most]


def profile_text(profiles: Sequence[RankProfile]) -> str:
    """Return the tables of profile.txt."""
    functions = summed(profiles)
    users = {key: value for key, value in functions.items() if is_user_file(key[0])}
    chunks, seconds = (
        sum(profile.chunks for profile in profiles),
        sum(profile.evaluating for profile in profiles),
    )
    lines = [
        f"Time in evaluations since the last start: {len(profiles)} ranks, {chunks:,} chunks, {seconds:.2f} s",
        "Seconds include the cost of measuring each call. Shares are those of a rank's time in evaluations.",
        "self: without the functions that it calls; cumulative: with them; * is your code.",
        "",
        *_rank_lines(profiles),
    ]
    for title, chosen, order in (
        ("Your code, by cumulative time", users, "cumulative"),
        ("All functions, by cumulative time", functions, "cumulative"),
        ("All functions, by self time", functions, "own"),
    ):
        lines += ["", title, *_table(profiles, chosen, order)]
    return "\n".join(lines) + "\n"


def summed(profiles: Sequence[RankProfile]) -> dict[Function, FunctionTime]:
    """Return the calls and seconds of each function, summed over the ranks."""
    functions: dict[Function, FunctionTime] = {}
    for profile in profiles:
        for key, time_ in profile.functions.items():
            before = functions.get(key, FunctionTime(0, 0.0, 0.0))
            functions[key] = FunctionTime(
                before.calls + time_.calls,
                before.own + time_.own,
                before.cumulative + time_.cumulative,
            )
    return functions


def _rank_lines(profiles: Sequence[RankProfile]) -> list[str]:
    """Return the share of each rank's time in evaluations;
    for many ranks only the lowest and the highest ones.
    """
    listed = list(profiles)
    lines = [f"{'rank':>6}  {'chunks':>8}  {'evaluating':>10}  {'of its time':>11}  host"]
    if len(profiles) > MOST_RANKS:
        by_time = sorted(profiles, key=lambda profile: profile.evaluating)
        listed = sorted(
            by_time[: MOST_RANKS // 2] + by_time[-MOST_RANKS // 2 :],
            key=lambda profile: profile.rank,
        )
        lines.insert(0, f"The {MOST_RANKS} ranks with the shortest and the longest times:")
    for profile in listed:
        share = 100 * profile.evaluating / max(profile.total, 1e-9)
        lines.append(
            f"{profile.rank:>6}  {profile.chunks:>8,}  {profile.evaluating:>8.2f} s  {share:>9.1f} %  {profile.host}"
        )
    return lines


def _table(
    profiles: Sequence[RankProfile], functions: Mapping[Function, FunctionTime], order: str
) -> list[str]:
    """Return a table of the functions with the longest times;
    the share of the ranks is that of the time `order`.
    """
    total = max(sum(profile.evaluating for profile in profiles), 1e-9)
    chosen = _longest(functions, order, MOST_LISTED)
    lines = [
        f"{'self':>10}  {'cumulative':>10}  {'share':>6}  {'by rank':>12}  {'calls':>12}    function"
    ]
    for key in chosen:
        time_ = functions[key]
        shares = [
            100 * _seconds(profile, key, order) / max(profile.evaluating, 1e-9)
            for profile in profiles
        ]
        by_rank = f"{min(shares):.0f}-{max(shares):.0f} %"
        share = 100 * float(getattr(time_, order)) / total
        mark = "*" if is_user_file(key[0]) else " "
        lines.append(
            f"{time_.own:>8.3f} s  {time_.cumulative:>8.3f} s  {share:>4.0f} %  {by_rank:>12}  {time_.calls:>12,}  "
            f"{mark} {_name(key)}"
        )
    return lines if chosen else [*lines, "(none)"]


def _seconds(profile: RankProfile, key: Function, order: str) -> float:
    time_ = profile.functions.get(key)
    return 0.0 if time_ is None else float(getattr(time_, order))


def _name(key: Function) -> str:
    """Return the name of a function with its file, such as "step (envs/walker.py:12)"."""
    file, line, name = key
    return name if file == "~" else f"{name} ({'/'.join(Path(file).parts[-2:])}:{line})"
