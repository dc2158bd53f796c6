"""Milliseconds per generation of quality diversity, beside pyribs on the same cores.

    python -m benchmarks.quality_diversity_time --generations 200 --rounds 3

Trials are those of `benchmarks.quality_diversity`, one after another: ours on some ranks, those of
pyribs with its own emitters, and with those of pycma. Their first tenth does not count. The last
row has evaluations of a millisecond each, which pyribs gives to a pool of as many processes. Prints
medians, and those of the ratios within a round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from statistics import median

from benchmarks.quality_diversity import PEERS, RESULTS, Trial, run

LIBRARIES = ("", "pyribs_", "pycma_")
ROWS = (*(("sphere", name) for name in PEERS), ("sphere_1ms", "map_elites"))


def times(domain: str, algorithm: str, seed: int, generations: int, ranks: int) -> Iterator[float]:
    """Yield the milliseconds of each library that has the algorithm."""
    for library in LIBRARIES:
        if library == "pycma_" and not algorithm.startswith("cma"):
            continue
        trial = Trial(domain, f"{library}{algorithm}", seed, generations, ranks)
        yield run(trial, RESULTS / "times").ms_per_generation


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality_diversity_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="*", metavar="GLOB", help="DOMAIN/NAME")
    options = parser.parse_args()
    print("| domain | algorithm | hpc_es | pyribs | ratio | with pycma | ratio |\n|" + "---|" * 7)
    for domain, algorithm in ROWS:
        if not fnmatch(f"{domain}/{algorithm}", options.only):
            continue
        rounds = [
            list(times(domain, algorithm, seed, options.generations, options.ranks))
            for seed in range(1, options.rounds + 1)
        ]
        ours, *others = zip(*rounds, strict=True)
        cells = [f"{median(ours):.1f}"]
        for other in others:
            ratio = median(theirs / own for theirs, own in zip(other, ours, strict=True))
            cells += [f"{median(other):.1f}", f"{ratio:.2f}"]
        print(f"| {' | '.join([domain, algorithm, *cells])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
