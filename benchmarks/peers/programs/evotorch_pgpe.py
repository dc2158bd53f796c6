"""EvoTorch: PGPE on a GymNE problem, with one Ray actor per core."""

from __future__ import annotations

import itertools

from evotorch.algorithms import PGPE
from evotorch.neuroevolution import GymNE

from benchmarks.peers.reporter import Reporter, read_arguments


def network(hidden: list[int]) -> str:
    """Return the network in the notation of EvoTorch."""
    sizes = ["obs_length", *map(str, hidden), "act_length"]
    linear = [f"Linear({inputs}, {outputs})" for inputs, outputs in itertools.pairwise(sizes)]
    return " >> Tanh() >> ".join(linear)


def main() -> None:
    """Run generations until the reporter stops them."""
    work = read_arguments()
    problem = GymNE(
        work["environment"],
        network(work["hidden"]),
        num_actors=work["cores"],
        observation_normalization=False,
    )
    searcher = PGPE(
        problem,
        popsize=work["population"],
        center_learning_rate=0.01,
        stdev_learning_rate=0.1,
        stdev_init=0.1,
        optimizer="adam",
    )
    reporter, goes_on = Reporter(work["seconds"]), True
    while goes_on:
        searcher.step()
        goes_on = reporter.report(int(searcher.status["total_interaction_count"]))


if __name__ == "__main__":
    main()
