"""Which part of a list of work is mine: tasks of a job array and groups of ranks take contiguous shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_es.core.errors import UserError


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 0) of `count`."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @staticmethod
    def parse(text: str) -> Shard:
        """From "i/n"; UserError unless 0 <= i < n."""
        index, _, count = text.partition("/")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return Shard(int(index), int(count))
        raise UserError(f"--shard: expected i/n with 0 <= i < n, such as 0/4, found {text!r}")

    @staticmethod
    def of_array(environ: Mapping[str, str]) -> Shard | None:
        """Return the place of this task among those of its SLURM job array; None outside of one.

        An array 10-30:10 has the tasks 10, 20 and 30, which are the shards 0/3, 1/3 and 2/3. The tasks of an array
        with gaps, such as 1,2,7, cannot be told their places by SLURM's variables: UserError.
        """
        if "SLURM_ARRAY_TASK_ID" not in environ:
            return None
        task, first, last, count = (int(environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "MIN", "MAX", "COUNT"))
        if count == 1:
            return Shard()
        step, uneven = divmod(last - first, count - 1)
        if uneven or (task - first) % step:
            text = f"SLURM tells of {count} array tasks from {first} to {last}, which are not evenly spaced"
            raise UserError(f"{text}: say --shard i/n, or submit an array without gaps (0-{count - 1})")
        return Shard((task - first) // step, count)

    def share(self, total: int) -> range:
        """This part of 0 .. total - 1: contiguous, none missing, none twice, sizes differ by at most one."""
        size, left = divmod(total, self.count)
        start = size * self.index + min(left, self.index)
        return range(start, start + size + (self.index < left))
