"""The genetic algorithm for programs: operators by hand, the hall of fame,
and the end of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core.data import CORRECT, NO_FITNESS, Jobs, Outcome, Results, State, row_dtype
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.programs import ga
from hpc_es.programs.compiled import compiled as compile_
from hpc_es.programs.compiled import mutate_all
from hpc_es.programs.ga import Mutation, crossover, is_closed, mutate, offspring, roulette
from hpc_es.tasks.problems import ProblemDefaults
from tests.helpers.toys import nothing

ROW = row_dtype((CORRECT,))
NO_ROWS = np.zeros(0, ROW)


class Letters(ProblemDefaults):
    """A problem with two letters: what a program is worth, a function says."""

    columns, alphabet = (CORRECT,), "ab"

    def __init__(self, length: int, worth: Callable[[str], float]) -> None:
        self.length, self.worth = length, worth
        self.executed: list[str] = []

    def evaluate(self, programs: Sequence[str], jobs: Jobs, poll: Any) -> Outcome:
        assert len(jobs) == len(programs)
        rows = np.zeros(len(programs), ROW)
        rows["return_"] = [self.worth(program) for program in programs]
        rows["correct"] = rows["return_"] >= 1.0
        self.executed += programs
        return Outcome(rows)


def algorithm(problem: Letters, seed: int = 1, **settings: Any) -> ga.GeneticAlgorithm:
    return ga.build(ga.Options(**{"population_size": 10, **settings}), problem, None, Keys(seed), 4)


def test_fitness_of_a_program_is_its_reward_not_the_return() -> None:
    """All returns are 0."""
    created = algorithm(Letters(3, lambda program: 0.0))
    state = created.initial()
    rows = np.zeros(int(state.shared["count"]), ROW)
    fitness = np.arange(len(rows)) / 10
    _, metrics = created.tell(state, Results(rows, [], [], fitness=fitness))
    assert metrics["population_reward_max"] == metrics["best_reward"] == fitness.max() > 0


def generation(created: ga.GeneticAlgorithm, state: State) -> tuple[State, Any]:
    outcomes = [
        created.evaluate(state, chunk, nothing)
        for chunk in created.ask(state, 0, NO_ROWS, NO_FITNESS)
    ]
    rows = np.concatenate([NO_ROWS, *(outcome.rows for outcome in outcomes)])
    return created.tell(state, Results(rows, [], [], fitness=rows["return_"]))


def share_of_b(program: str) -> float:
    return program.count("b") / len(program)


def test_generation_0_executes_each_random_program_once() -> None:
    created = algorithm(Letters(2, share_of_b))  # four programs, so ten have duplicates
    state = created.initial()
    assert int(state.master["children_count"]) == 10
    generation(created, state)
    assert sorted(created.problem.executed) == ["aa", "ab", "ba", "bb"]


def test_hall_of_fame_has_the_best_programs_once_and_joins_the_population() -> None:
    task = Letters(6, share_of_b)
    created = algorithm(task, crossover_rate=0.9, mutation_rate=0.2)
    state, _ = generation(created, created.initial())
    assert int(state.master["parents_count"]) == 10  # at first without the hall of fame
    for _ in range(5):
        assert int(state.master["children_count"]) == 8
        state, metrics = generation(created, state)
        best = sorted(set(task.executed), key=share_of_b)[-2:]
        kept = ["".join("ab"[gene] for gene in row) for row in state.master["best"]]
        assert sorted(map(share_of_b, kept)) == [share_of_b(program) for program in best]
        assert len(set(kept)) == 2
        assert int(state.master["parents_count"]) == 10
        assert state.master["parents"][8:10].tolist() == state.master["best"].tolist()
        assert metrics["population_reward_max"] == share_of_b(best[-1])


def test_programs_of_the_last_population_are_not_executed_again() -> None:
    task = Letters(4, share_of_b)
    created = algorithm(task, crossover_rate=0.5, mutation_rate=0.1)
    state = created.initial()
    for _ in range(6):
        known = {
            "".join("ab"[gene] for gene in row)
            for row in state.master["parents"][: state.master["parents_count"]]
        }
        task.executed.clear()
        state, _ = generation(created, state)
        assert len(set(task.executed)) == len(task.executed)
        assert not known & set(task.executed)


def test_copies_get_the_known_rewards() -> None:
    """Without crossover and mutation all programs are copies;
    the mean reward is that of the copies.
    """
    created = algorithm(Letters(6, share_of_b), crossover_rate=0.0, mutation_rate=0.0)
    state, _ = generation(created, created.initial())
    assert created.ask(state, 0, NO_ROWS, NO_FITNESS) == []
    state, metrics = generation(created, state)
    parents = state.master["parents"][:10]
    assert metrics["population_reward_mean"] == pytest.approx((parents == 1).mean())
    assert int(state.master["executed"]) == len(set(created.problem.executed))


def test_ga_improves_the_reward() -> None:
    """Twelve letters, all solved by roulette selection and the hall of fame;
    the best never gets worse.
    """
    created = algorithm(
        Letters(12, share_of_b), population_size=30, crossover_rate=0.9, mutation_rate=0.05
    )
    state, best = created.initial(), [0.0]
    while created.finished(state) is None:
        state, metrics = generation(created, state)
        best.append(metrics["best_reward"])
        assert state.generation < 60
    assert best == sorted(best) and best[1] < 1.0
    summary = created.summary(state)
    assert (summary["success"], summary["code_solution"], summary["best_reward"]) == (
        True,
        "b" * 12,
        1.0,
    )
    assert summary["npe"] == created.problem.executed.index("b" * 12) + 1
    assert summary["original_npe"] == (state.generation - 1) * 30


def test_success_ends_the_search_only_if_configured() -> None:
    created = algorithm(Letters(2, share_of_b), stop_on_success=False)
    state, metrics = generation(created, created.initial())
    assert metrics["solved"] == 1.0
    assert created.finished(state) is None


@pytest.mark.parametrize(
    ("length", "settings", "why"),
    [
        (
            6,
            {"mutation_rate": 0.0, "crossover_rate": 0.0},
            "there is neither mutation nor crossover",
        ),
        (
            6,
            {"mutation_rate": 0.0, "hall_of_fame_size": 1},
            "crossover of the population gives only programs that it already contains",
        ),
        (1, {}, "crossover of the population gives only programs that it already contains"),
        (6, {"population_size": 3}, "in addition to the hall of fame, there is no pair of parents"),
    ],
)
def test_search_ends_if_no_new_program_is_possible(
    length: int, settings: dict[str, Any], why: str
) -> None:
    """A longer search would only execute programs again that had been lost."""
    created = algorithm(Letters(length, lambda program: 0.5), **settings)
    state = created.initial()
    while (reason := created.finished(state)) is None:
        state, _ = generation(created, state)
        assert state.generation < 200
    assert reason.startswith("no new programs: ") and why in reason
    known = set(created.problem.executed)
    for _ in range(20):
        state, _ = generation(created, state)
    assert set(created.problem.executed) == known


def test_search_continues_if_a_new_program_is_possible() -> None:
    """The mutation rate is 0.02: most pairs of children are copies, and new programs come later."""
    created = algorithm(
        Letters(6, lambda program: 0.5), population_size=4, mutation_rate=0.02, crossover_rate=0.0
    )
    state, fresh = created.initial(), []
    for _ in range(200):
        assert created.finished(state) is None
        fresh.append(int(state.shared["count"]))
        state, _ = generation(created, state)
    assert 0 in fresh and any(fresh[fresh.index(0) :])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"population_size": 2},
            "algorithm.population_size: is 2, but the hall of fame alone has 2",
        ),
        ({"population_size": 3, "hall_of_fame_size": 4}, "is 3, but the hall of fame alone has 4"),
        (
            {"mutation_rate": -0.1},
            "algorithm.mutation_rate: expected a number from 0 to 1, found -0.1",
        ),
        (
            {"crossover_rate": 1.5},
            "algorithm.crossover_rate: expected a number from 0 to 1, found 1.5",
        ),
        (
            {"hall_of_fame_size": 0},
            "algorithm.hall_of_fame_size: expected a whole number of at least 1",
        ),
    ],
)
def test_invalid_ga_options_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        validate(
            {
                "task": {"kind": "programs", "name": "reverse"},
                "algorithm": {"kind": "ga", **settings},
            }
        )


def genome(text: str) -> bytes:
    return bytes(int(digit) for digit in text)


def text(genome: bytes) -> str:
    return "".join(map(str, genome))


def compiled(parent: bytes, changes: list[Mutation]) -> bytes:
    """The result of `mutate_all`, with the interface of `mutate`."""
    table = np.frombuffer(parent, np.uint8).reshape(1, -1).copy()
    places, kinds, fresh, flags = (np.array(column) for column in zip(*changes, strict=True))
    mutate_all(table, np.zeros(len(places), np.int64), places, kinds, fresh.astype(np.uint8), flags)
    return table[0].tobytes()


@pytest.mark.parametrize("changed", [mutate, compiled])
@pytest.mark.parametrize(
    ("position", "kind", "flag", "expected"),
    [
        (2, 0.1, True, "01923"),  # inserted before place 2, the last is pushed out
        (2, 0.1, False, "19234"),  # inserted, the first is pushed out
        (1, 0.1, True, "09123"),
        (1, 0.1, False, "91234"),
        (3, 0.2499, True, "01293"),
        (0, 0.1, True, "12349"),  # at the ends an insertion is a deletion
        (4, 0.1, False, "90123"),
        (2, 0.25, True, "01349"),
        (2, 0.3, False, "90134"),
        (4, 0.3, True, "01239"),
        (0, 0.3, False, "91234"),
        (2, 0.5, True, "12340"),
        (2, 0.6, False, "40123"),
        (2, 0.75, True, "01934"),
    ],
)
def test_single_mutation_by_hand(
    changed: Any, position: int, kind: float, flag: bool, expected: str
) -> None:
    assert text(changed(genome("01234"), [(position, kind, 9, flag)])) == expected


@pytest.mark.parametrize("changed", [mutate, compiled])
def test_mutations_apply_to_the_already_changed_genome(changed: Any) -> None:
    """Rotate to the left at 0, then replace at 2."""
    assert text(changed(genome("012"), [(0, 0.6, 9, True), (2, 0.8, 7, True)])) == "127"


@pytest.mark.parametrize("changed", [mutate, compiled])
def test_genome_of_one_gene_is_not_mutated(changed: Any) -> None:
    assert changed(genome("3"), [(0, 0.8, 9, True)]) == genome("3")


def test_operators_are_compiled_without_a_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba finds no directory for its cache, as in a read-only container."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    def twice(number: int) -> int:
        return 2 * number

    assert compile_(twice)(21) == 42


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_children_are_identical_without_numba(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    parents = [
        bytes(row)
        for row in np.random.default_rng(4).integers(8, size=(31, length), dtype=np.uint8)
    ]
    fast = offspring(parents, 0.7, 0.3, 8, np.random.default_rng(5))
    monkeypatch.setattr(ga, "_compiled", lambda: None)
    assert offspring(parents, 0.7, 0.3, 8, np.random.default_rng(5)) == fast
    assert sorted(fast) != sorted(parents) or length == 1
    assert {len(child) for child in fast} == {length}


def test_mutation_rate_is_the_probability_per_gene() -> None:
    """Rate 0 changes nothing; with 0.15 a genome of 100 is
    unchanged with probability 0.85 ** 100, about 1e-7.
    """
    parents = [bytes(range(100))] * 50
    assert offspring(parents, 0.0, 0.0, 256, np.random.default_rng(1)) == parents
    assert parents[0] not in offspring(parents, 0.0, 0.15, 256, np.random.default_rng(1))


def test_kinds_of_mutation_are_equally_frequent() -> None:
    """A genome of equal genes 0 is changed once in its middle:
    the new gene shows the kind of mutation.
    """
    count = 8000
    rng = np.random.default_rng(6)
    places = Counter[int]()
    for kind, flag in zip(
        rng.random(count).tolist(), (rng.random(count) < 0.5).tolist(), strict=True
    ):
        places[mutate(genome("000"), [(1, kind, 9, flag)]).find(9)] += 1
    for position, share in {1: 3 / 8, 0: 2 / 8, 2: 1 / 8, -1: 2 / 8}.items():
        assert abs(places[position] - share * count) < 5 * (count * share * (1 - share)) ** 0.5


def test_crossover_swaps_the_tails() -> None:
    pair = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    children = crossover(np.array([pair, pair, pair], np.uint8), np.array([2, 0, 5]))
    assert children.tolist() == [[[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]], pair[::-1], pair]


def test_odd_last_parent_is_copied() -> None:
    parents = [genome("000"), genome("111"), genome("222")]
    children = offspring(parents, 1.0, 0.0, 10, np.random.default_rng(2))
    assert children[2] == parents[2]
    assert [a + b for a, b in zip(children[0], children[1], strict=True)] == [1, 1, 1]
    assert offspring(parents, 0.0, 0.0, 10, np.random.default_rng(2)) == parents
    assert offspring(parents, 0.0, 1.0, 10, np.random.default_rng(2))[2] == parents[2]
    assert offspring([], 1.0, 1.0, 10, np.random.default_rng(2)) == []


def test_roulette_selects_in_proportion_to_fitness() -> None:
    """Weights 0.05, 0.05 and 0.95 + 0.05: of 11,000 draws 500, 500 and 10,000,
    within five standard deviations.
    """
    drawn = Counter(
        roulette(np.array([-3.0, 0.0, 0.95]), 11_000, np.random.default_rng(3)).tolist()
    )
    assert abs(drawn[0] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert abs(drawn[1] - 500) < 5 * (500 * 10.5 / 11) ** 0.5
    assert sum(drawn.values()) == 11_000


@pytest.mark.parametrize(
    ("genomes", "closed"),
    [
        ("", True),
        ("0 1 2", True),  # one gene: crossing swaps the whole
        ("012 012", True),
        ("012 013", True),  # they differ in one place
        ("012 112 110", False),  # 010
        ("00 01 10 11", True),
        ("00 11", False),  # 01
        ("000 001 110 111", False),  # 010, cut before the second place; behind it nothing is new
    ],
)
def test_closure_under_crossover_is_detected(genomes: str, closed: bool) -> None:
    some = [genome(item) for item in genomes.split()]
    assert is_closed(some) is closed
    places = range(len(some[0]) if some else 0)
    every = {
        one[:position] + other[position:] for one in some for other in some for position in places
    }
    assert (every <= set(some)) is closed
