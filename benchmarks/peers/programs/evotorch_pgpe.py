"""EvoTorch: PGPE on a GymNE problem, with an actor of Ray's for each core."""

from __future__ import annotations

import itertools

from evotorch.algorithms import PGPE
from evotorch.neuroevolution import GymNE

from benchmarks.peers.telling import Telling, told


def network(hidden: list[int]) -> str:
    """Return the network in EvoTorch's own notation."""
    sizes = ["obs_length", *map(str, hidden), "act_length"]
    linear = [f"Linear({given}, {wanted})" for given, wanted in itertools.pairwise(sizes)]
    return " >> Tanh() >> ".join(linear)


def main() -> None:
    """Search until it is enough."""
    work = told()
    problem = GymNE(
        work["environment"], network(work["hidden"]), num_actors=work["cores"], observation_normalization=False
    )
    searcher = PGPE(
        problem,
        popsize=work["population"],
        center_learning_rate=0.01,
        stdev_learning_rate=0.1,
        stdev_init=0.1,
        optimizer="adam",
    )
    telling, goes_on = Telling(work["seconds"]), True
    while goes_on:
        searcher.step()
        goes_on = telling.goes_on(int(searcher.status["total_interaction_count"]))


if __name__ == "__main__":
    main()
