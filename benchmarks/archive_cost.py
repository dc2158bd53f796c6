"""What a generation of an archive costs, in instructions, beside pyribs.

    python -m benchmarks.archive_cost                       # map_elites, iso+line
    python -m benchmarks.archive_cost --only ask --generations 30

540 children of 100 parameters per generation on the sphere, in an archive of 100 x 100 cells, on
one process: `run`, a run of hpc_es with all that it records; `parts`, candidates and update of the
strategy alone; `ask`, the same by `hpc_es.Strategy`; `pyribs`, its scheduler. Valgrind
counts the instructions of two processes of different lengths: their difference does not depend on
what else the machine does. `--seconds` measures CPU time in place of instructions.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT, command
from benchmarks.quality_diversity import DIMENSIONS, DOMAINS, HALF, ONE_THREAD
from hpc_es.core.data import Chunk, Results

CHILDREN, SIGMA = 540, 0.5
ALGORITHM: Mapping[str, Any] = {"population_size": CHILDREN, "sigma": SIGMA, "sigma_line": 0.2}
FIRST = 20  # generations of the shorter process
REFS = re.compile(r"I\s+refs:\s+([\d,]+)")


def sphere() -> Callable[[Any], Mapping[str, Any]]:
    """Return the function of a batch of vectors."""
    sys.path.insert(0, str(ROOT / "configs"))
    import archive_functions

    return archive_functions.sphere


def searched() -> Any:
    """Return `map_elites` by ask and tell; it minimises."""
    import hpc_es

    return hpc_es.Strategy(
        "map_elites",
        x0=np.zeros(DIMENSIONS),
        measures={"a": (-HALF, HALF), "b": (-HALF, HALF)},
        seed=1,
        **ALGORITHM,
    )


def ask(generations: int) -> None:
    """Run `map_elites` by ask and tell."""
    search, function = searched(), sphere()
    for _ in range(generations):
        found = function(search.ask())
        search.tell(-found["value"], measures=found["measures"])


def parts(generations: int) -> None:
    """Run the steps of the strategy alone, and the function."""
    made, function = searched()._parts, sphere()
    strategy, state = made.algorithm, made.initial()
    for _ in range(generations):
        found = function(strategy.candidates(state, Chunk(0, 0, CHILDREN)).stacked())
        rows = np.zeros(CHILDREN, made.row)
        rows["return_"], rows["measures"] = found["value"], found["measures"]
        batch = strategy.prepare(state, rows, rows["return_"])
        count = strategy.blocks(state)
        blocks = [strategy.partial_update(state, batch, block) for block in range(count)]
        state, _ = strategy.tell(state, Results(rows, (), blocks, batch, overwrite=True))


def pyribs(generations: int) -> None:
    """Run pyribs' GridArchive and IsoLineEmitter."""
    from benchmarks.quality_diversity_peers import scheduler_of

    scheduler, _ = scheduler_of("pyribs_map_elites_line", "sphere", 1)
    function = sphere()
    for _ in range(generations):
        found = function(scheduler.ask())
        scheduler.tell(found["value"], found["measures"])


LOOPS: Mapping[str, Callable[[int], None]] = {"parts": parts, "ask": ask, "pyribs": pyribs}
NAMES = ("run", *LOOPS)


def words_of(name: str, generations: int, directory: Path, batch: int) -> list[str]:
    """Return the command line of a process."""
    if name in LOOPS:
        return [sys.executable, "-m", "benchmarks.archive_cost", "--loop", name, str(generations)]
    overrides = (
        "task.function=archive_functions:sphere",
        f"task.dimension={DIMENSIONS}",
        f"task.measures={DOMAINS['sphere']}",
        f"task.batch={batch}",
        f"algorithm={{kind: map_elites, population_size: {CHILDREN}, sigma: {SIGMA}}}",
        f"stop.generations={generations}",
        "report.plot_interval_seconds=0",
        "checkpoint.interval_seconds=100000",
    )
    output = directory / f"{name}_{generations}"
    words = command(1, ROOT / "configs/cma_mae_rastrigin.yaml", output, *overrides)
    return words[words.index(sys.executable) :]  # without mpiexec


def measured(words: Sequence[str], seconds: bool) -> float:
    """Return the instructions of a process in millions, or its milliseconds of CPU time."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONHASHSEED": "0"}
    counted = [] if seconds else ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    counted += [] if seconds else ["--cachegrind-out-file=/dev/null"]
    before = os.times()
    done = subprocess.run(
        [*counted, *words],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        # valgrind delivers alarms of timers that have ended
        preexec_fn=lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
    )
    after = os.times()
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    if seconds:
        return 1e3 * (after.children_user - before.children_user)
    found = REFS.search(done.stderr)
    assert found is not None, done.stderr[-500:]
    return int(found.group(1).replace(",", "")) / 1e6


def main() -> int:
    """Print what a generation costs."""
    if sys.argv[1:2] == ["--loop"]:
        LOOPS[sys.argv[2]](int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.archive_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--generations", type=int, default=20, help="that are measured")
    parser.add_argument("--batch", type=int, default=36, help="vectors of a call, of `run`")
    parser.add_argument("--seconds", action="store_true")
    options = parser.parse_args()
    unit = "ms of CPU time" if options.seconds else "million instructions"
    print(f"| what | {unit} per generation |\n|---|---|")
    for name in options.only:
        with tempfile.TemporaryDirectory() as directory:
            costs = [
                measured(words_of(name, count, Path(directory), options.batch), options.seconds)
                for count in (FIRST, FIRST + options.generations)
            ]
        print(f"| {name} | {(costs[1] - costs[0]) / options.generations:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
