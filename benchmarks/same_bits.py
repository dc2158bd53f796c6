"""Check that a changed hpc_es gives bit-identical results to an older version, with short runs in
both checkouts.

    git clone . ../before && git -C ../before checkout 3a37119
    python -m benchmarks.same_bits --before ../before --cache ../bits
    python -m benchmarks.same_bits --before ../before --cache ../bits --only 'es_*'

The cases are all configs of the older checkout, variants of them (`same_bits_cases.py`), runs that
the older version starts and the newer one resumes, and programs that use `Strategy` or `minimize`.
Asynchronous updates run on one rank, on which they do not depend on timing; compiled environments
run only if JAX is installed. Most cases with TensorFlow run on one rank, since it starts slowly.
Runs of the older version are cached in `--cache`. Prints a Markdown table, and writes
benchmarks/results/same_bits.json; the exit status is 1 if anything differs, fails or takes too
long.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.same_bits_cases import Case, all_cases
from benchmarks.same_bits_compare import Comparison, compare
from benchmarks.same_bits_runs import Cache, Checkout, JobError, again

RESULTS = ROOT / "benchmarks/results"
DIGITS = 12  # of a digest in the table


@dataclass(frozen=True)
class Row:
    """The result of a case; `comparison` is None if a run failed or took too long,
    and `failure` then says why.
    """

    case: Case
    seconds: float
    comparison: Comparison | None
    failure: str = ""

    @property
    def same(self) -> bool:
        """Whether both versions ran and nothing differs."""
        return self.comparison is not None and not self.comparison.differences


def main() -> int:
    """Run the cases and print the table; the exit status is 1 if anything differs or fails."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    since = time.perf_counter()
    checkouts = [
        Checkout(path.resolve(), options.ranks) for path in (options.before, options.after)
    ]
    for checkout in checkouts:
        if not checkout.imported().is_relative_to(checkout.path):
            sys.exit(
                f"{checkout.path}: expected a checkout of hpc_es, but `import hpc_es` there imports another copy"
            )
    cases, skipped = all_cases(checkouts[0].path)
    chosen = [case for case in cases if any(fnmatch(case.name, glob) for glob in options.only)]
    if not chosen:
        sys.exit(
            f"--only {' '.join(options.only)}: expected some of {', '.join(case.name for case in cases)}"
        )
    cache = Cache.under(options.cache.resolve(), checkouts[0], {case.name: case for case in cases})
    print(f"before {checkouts[0].label()}, after {checkouts[1].label()}, {options.ranks} ranks\n")
    print("| case | what was run | generations | sha256 | bits |\n|---|---|---|---|---|")
    rows = _run_all(chosen, cache, checkouts[1], options.jobs)
    for name, reason in skipped.items():
        print(f"| {name} | | | | skipped: {reason} |")
    _finish(rows, skipped, checkouts, time.perf_counter() - since)
    return int(not all(row.same for row in rows))


def _run_all(cases: Sequence[Case], cache: Cache, after: Checkout, jobs: int) -> list[Row]:
    """Run `jobs` cases at a time, and print the rows in order as soon as they are complete."""
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for row in pool.map(lambda case: run(case, cache, after), cases):
                rows.append(row)
                print(line(row), flush=True)
        finally:  # after Ctrl-C or SIGTERM start no further case
            pool.shutdown(cancel_futures=True)
    return rows


def run(case: Case, cache: Cache, after: Checkout) -> Row:
    """Run a case in both checkouts, unless the older run is in the cache, and compare."""
    try:
        before = cache.run(case)
    except JobError as error:
        return Row(case, 0.0, None, f"before: {error}")
    with tempfile.TemporaryDirectory() as directory:
        try:
            seconds = again(cache, after, case, Path(directory) / "run")
        except JobError as error:
            return Row(case, 0.0, None, f"after: {error}")
        try:
            return Row(case, seconds, compare(before / "whole", Path(directory) / "run"))
        except (OSError, KeyError, ValueError) as error:  # missing files, or another layout
            return Row(case, seconds, None, f"after: the run cannot be read: {error!r}")


def line(row: Row) -> str:
    """Return a row of the table."""
    case = row.case
    ran = " ".join([case.program or case.config, *case.words, *([case.stop] if case.stop else [])])
    if case.begins_from:
        ran += f", starts from {case.begins_from}"
    if case.resumed_at:
        ran += f", {case.resumed_at} generations before, then resumed"
    if row.comparison is None:
        return _cells(case.name, ran, "", "", f"FAILED: {row.failure}")
    comparison = row.comparison
    sums = dict.fromkeys(
        f"{kind} {digest[:DIGITS]}"
        for kind, _, digest in (text.partition(" ") for text in comparison.sha256)
    )
    result = (
        "same"
        if row.same
        else f"DIFFERENT: {comparison.differences[0]} ({len(comparison.differences)} in all)"
    )
    return _cells(case.name, ran, str(comparison.generations), ", then ".join(sums), result)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _finish(
    rows: Sequence[Row], skipped: Mapping[str, str], checkouts: Sequence[Checkout], seconds: float
) -> None:
    """Print the summary, and write the JSON file."""
    added = dict.fromkeys(text for row in rows if row.comparison for text in row.comparison.added)
    print(f"\n{len(rows)} cases; {seconds:.0f} s")
    failed = [row.case.name for row in rows if row.comparison is None]
    different = [row.case.name for row in rows if row.comparison and not row.same]
    print(f"{len(different)} DIFFERENT {' '.join(different)}".rstrip())
    print(f"{len(failed)} FAILED {' '.join(failed)}".rstrip())
    if added:
        print(
            "New in the version after, not counted as a difference:\n"
            + "\n".join(f"- {text}" for text in added)
        )
    labels = [{"path": str(checkout.path), "commit": checkout.label()} for checkout in checkouts]
    cases = [{**asdict(row), "same": row.same} for row in rows]
    content = {
        "before": labels[0],
        "after": labels[1],
        "ranks": checkouts[0].ranks,
        "seconds": seconds,
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**content, "rows": cases, "skipped": dict(skipped)}, indent=2)
    (RESULTS / "same_bits.json").write_text(text + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.same_bits", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--before", type=Path, required=True, help="a checkout of the older version"
    )
    parser.add_argument(
        "--after",
        type=Path,
        default=ROOT,
        help="a checkout of the newer version; default: this one",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=RESULTS / "same_bits",
        help="directory for the runs of --before",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="GLOB",
        help="run the cases whose names match one",
    )
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks per run")
    parser.add_argument("--jobs", type=int, default=2, help="number of concurrent cases")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
