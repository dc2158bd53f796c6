"""Division of work into contiguous shares, for tasks of a job array and groups of ranks."""

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
        """Return the shard "i/n"; UserError unless 0 <= i < n."""
        index, _, count = text.partition("/")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return Shard(int(index), int(count))
        raise UserError(f"--shard: expected i/n with 0 <= i < n, such as 0/4, found {text!r}")

    @staticmethod
    def of_array(environ: Mapping[str, str]) -> Shard | None:
        """Return the shard of this task in its SLURM job array; None outside an array.

        An array 10-30:10 has the tasks 10, 20 and 30, which are the shards 0/3, 1/3 and 2/3. Raises UserError for an
        array with gaps, such as 1,2,7, because SLURM's variables do not say which of its tasks this is.
        """
        if "SLURM_ARRAY_TASK_ID" not in environ:
            return None
        task, first, last, count = (int(environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "MIN", "MAX", "COUNT"))
        if count == 1:
            return Shard()
        step, uneven = divmod(last - first, count - 1)
        if uneven or (task - first) % step:
            text = f"SLURM reports {count} array tasks from {first} to {last}, which are not evenly spaced"
            raise UserError(f"{text}: pass --shard i/n, or submit an array without gaps (0-{count - 1})")
        return Shard((task - first) // step, count)

    def share(self, total: int) -> range:
        """Return this shard's part of 0 .. total - 1: contiguous parts, whose sizes differ by at most one."""
        size, left = divmod(total, self.count)
        start = size * self.index + min(left, self.index)
        return range(start, start + size + (self.index < left))
