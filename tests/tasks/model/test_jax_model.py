"""Models as users write them: parameters by name,
scores in compiled calls of several candidates, batches.
"""

from __future__ import annotations

import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
from hpc_es.core import machine
from hpc_es.core.data import Jobs, Outcome, aligned_empty
from hpc_es.core.errors import ConfigError, RunError
from hpc_es.core.interfaces import RunContext
from hpc_es.core.keys import Keys
from hpc_es.core.population import Explicit, Factorisation, LowRank, unperturbed
from hpc_es.tasks.model import jax_model
from hpc_es.tasks.model import task as model_task
from hpc_es.tasks.model.task import ModelTask, Options, build
from hpc_es.tasks.quantities import MeasureOptions, ObjectiveOptions, SourceOptions
from tests.helpers import own_models

MODELS = "tests.helpers.own_models"
# slope and bias
POINTS = np.array([[2, -1, 1], [0, 0, 0], [1, 1, 0], [3, -1, 1], [2, 0, -1]], np.float32)


def task(name: str = "line", metrics: tuple[str, ...] = (), **settings: Any) -> ModelTask:
    return build(
        Options(model=f"{MODELS}:{name}", **settings), info=dict.fromkeys(metrics, "final")
    )  # type: ignore[arg-type]


def evaluated(
    created: ModelTask, vectors: Any, purpose: Any = "train", groups: Any = None, first: int = 0
) -> Outcome:
    problem = created.problem("vectors", None, Keys(5), 16)
    numbers = range(first, first + len(vectors))
    jobs = Jobs(
        3, numbers, [number // 2 for number in numbers] if groups is None else groups, purpose
    )
    return problem.evaluate(
        Explicit(problem.layout, np.asarray(vectors, np.float32)),
        jobs,
        problem.carried(),
        lambda: None,
    )


def by_hand(vector: Any, batch: Any) -> tuple[float, float]:
    """Negative mean square and mean absolute error of slope and bias."""
    x, y = batch
    errors = x.astype(np.float64) @ vector[:2] + vector[2] - y
    return -float(np.mean(errors**2)), float(np.mean(np.abs(errors)))


def batch_seed(purpose: int, group: int) -> int:
    return Keys(5).seed31(purpose, 3, group)  # type: ignore[arg-type]


# Parameters.


def test_tree_is_a_vector_with_the_paths_as_names() -> None:
    model = task().model
    assert dict(model.layout.shapes) == {"offset/bias": (), "slope": (2,)}
    assert model.initial(0).tolist() == [0.0, 0.0, 0.0]


def test_parameters_of_a_seed_keep_float32_masters_of_half_precision() -> None:
    import jax

    model = task("drawn").model
    first = model.initial(7)
    assert first.dtype == np.float32
    assert (
        first[1:].tolist()
        == np.asarray(jax.random.normal(jax.random.key(7), (2,), "bfloat16"), np.float32).tolist()
    )
    assert model.initial(7).tobytes() == first.tobytes() != model.initial(8).tobytes()
    tree = model.parameters.restored(first)
    assert (str(tree["slope"].dtype), tree["offset"]["bias"].dtype) == ("bfloat16", np.float32)


def test_memory_of_initial_parameters_is_returned_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(jax_model, "return_freed_memory", lambda: calls.append(None))
    model = task().model
    expected = model.initial(0)
    assert not calls
    monkeypatch.setattr(jax_model, "FREED_BYTES", 8)  # the slope has 8 bytes, the bias 4
    assert model.initial(0).tobytes() == expected.tobytes()
    assert len(calls) == 1


def test_score_gets_the_dtypes_of_the_tree() -> None:
    """1/3 is 0.333984375 in bfloat16, whose 8 bits of precision are those of 171/512."""
    problem_task = task("drawn")
    vector = np.array([0, 1 / 3, 0], np.float32)
    outcome = evaluated(problem_task, [vector])
    x, y = own_models.points(batch_seed(4, 0))
    errors = x[:, 0] * 0.333984375 - y
    assert outcome.rows["return_"][0] == pytest.approx(-np.mean(errors**2), rel=1e-5)


def test_keras_model_is_called_with_the_weights_of_the_candidate_and_without_dropout() -> None:
    own_models.skip_without_keras()
    created = task("keras_line")
    shapes = created.model.layout.shapes
    assert list(shapes.values()) == [(2, 3), (3,), (3, 1), (1,)]
    assert next(iter(shapes)).endswith("kernel")
    vector = created.model.initial(3)
    kernel, bias, last, offset = (part for part in created.model.layout.split(vector).values())
    x, y = own_models.points(batch_seed(4, 0))
    expected = -np.mean((np.tanh(x @ kernel + bias) @ last + offset - y[:, None]) ** 2)
    assert evaluated(created, [vector]).rows["return_"][0] == pytest.approx(expected, rel=1e-5)
    assert (
        created.model.initial(3).tobytes() == vector.tobytes() != created.model.initial(4).tobytes()
    )
    restored = created.model.parameters.restored(vector)
    assert np.asarray(restored.trainable_variables[0].value).tobytes() == kernel.tobytes()


# Scores.


def test_candidates_of_a_generation_have_one_batch() -> None:
    outcome = evaluated(task(metrics=("absolute",), jobs_per_call=2), POINTS)
    batch = own_models.points(batch_seed(4, 0))
    # the bias comes first in the vector
    expected = [by_hand(vector[[1, 2, 0]], batch) for vector in POINTS]
    assert outcome.rows["return_"] == pytest.approx(
        [fitness for fitness, _ in expected], rel=1e-4, abs=1e-6
    )
    assert outcome.rows["info"][:, 0] == pytest.approx(
        [absolute for _, absolute in expected], rel=1e-4, abs=1e-6
    )
    assert outcome.rows["length"].tolist() == [1] * 5


@pytest.mark.parametrize("batches", ["generation", "pair"])
def test_low_rank_candidates_have_the_scores_of_formed_ones_in_any_place(batches: Any) -> None:
    """7 candidates in calls of 4, of rank 2;
    kernels of loops and convolutions are formed in the call.
    """
    created = task("layers", jobs_per_call=4, batches=batches)
    problem = created.problem("vectors", None, Keys(5), 16)
    factorisation = Factorisation(problem.layout, 2)
    theta, rng = problem.initial(np.random.default_rng(0)), np.random.default_rng(1)
    numbers = rng.standard_normal((4, factorisation.compact.size)).astype(np.float32)
    rows, scales = np.arange(7) // 2, np.where(np.arange(7) % 2, 0.1, -0.1).astype(np.float32)

    def scores(population: Any, groups: Any) -> Any:
        jobs = Jobs(3, range(7), groups, "train")
        return problem.evaluate(population, jobs, problem.carried(), lambda: None).rows["return_"]

    candidates = LowRank(factorisation, theta, numbers, rows, scales)
    expected = scores(Explicit(problem.layout, candidates.stacked()), rows)
    problem.use_factors(factorisation)
    created.close()  # deletes the call without factors
    assert set(factorisation.matrices) - set(problem.factored()) == {"kernel", "recurrent"}
    result = scores(candidates, rows)
    # products of bfloat16 are rounded elsewhere
    np.testing.assert_allclose(result, expected, rtol=5e-3)
    assert len(set(result.tolist())) == 7
    backwards = np.arange(7)[::-1]
    turned = LowRank(factorisation, theta, numbers, rows[backwards], scales[backwards])
    assert scores(turned, rows[backwards])[backwards].tobytes() == result.tobytes()


def placed(vector: Any, start: int) -> Any:
    """Return a copy of a vector that begins `start` numbers of 4 bytes after an aligned address."""
    copy = aligned_empty((len(vector) + start,), np.float32)[start:]
    copy[:] = vector
    return copy


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_calls_on_a_cpu_read_theta_in_place_where_it_is_aligned(
    purpose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bias has 5 numbers and comes first, so that the matrices, of multiples of 16 numbers, are
    aligned after 11.

    An update overwrites theta: later calls have the scores of the new one, whether or not the old
    one was copied.
    """
    created = task("layers", jobs_per_call=2)
    problem = created.problem("vectors", None, Keys(5), 16)
    factorisation, initial = (
        Factorisation(problem.layout, 1),
        problem.initial(np.random.default_rng(0)),
    )
    problem.use_factors(factorisation)
    numbers = (
        np.random.default_rng(1).standard_normal((1, factorisation.compact.size)).astype(np.float32)
    )
    arguments: list[Any] = []  # of the last call, by name

    def compute(call: Any, parts: Any, batch: Any, poll: Any, common: Any = None) -> Any:
        arguments[:] = [common if purpose == "train" else parts]
        return original(call, parts, batch, poll, common)

    original = jax_model.ScoreCall.compute
    monkeypatch.setattr(jax_model.ScoreCall, "compute", compute)

    def scores(theta: Any) -> Any:
        candidates: Any = unperturbed(problem.layout, theta, 2)
        if purpose == "train":
            scales = np.array([0.1, -0.1], np.float32)
            candidates = LowRank(factorisation, theta, numbers, np.zeros(2, np.intp), scales)
        jobs = Jobs(3, range(2), [0, 0], purpose)
        result = problem.evaluate(candidates, jobs, problem.carried(), lambda: None).rows["return_"]
        expected = {name: view.ctypes.data for name, view in problem.layout.split(theta).items()}
        addresses = {name: array.unsafe_buffer_pointer() for name, array in arguments[0].items()}
        in_place = {name for name, address in addresses.items() if address == expected[name]}
        assert in_place == {name for name in addresses if expected[name] % 64 == 0}
        return result, in_place

    results = []
    for start, matrices in ((11, set(factorisation.matrices)), (0, set())):
        theta = placed(initial, start)
        before, in_place = scores(theta)
        assert in_place - {"bias"} == matrices
        theta *= np.float32(0.5)
        after, _ = scores(theta)
        results.append((before.tobytes(), after.tobytes()))
        assert before.tobytes() != after.tobytes() == scores(placed(theta, 5))[0].tobytes()
    assert results[0] == results[1]


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_candidates_are_freed_when_their_scores_are_known(purpose: Any) -> None:
    problem = task("large", model_kwargs={"size": 1000}, jobs_per_call=1).problem(
        "vectors", None, Keys(5), 16
    )
    theta = placed(np.ones(1000), 0)
    memory = weakref.ref(theta.base)
    problem.evaluate(
        Explicit(problem.layout, theta[np.newaxis]),
        Jobs(3, range(1), [0], purpose),
        problem.carried(),
        lambda: None,
    )
    del theta
    assert memory() is None


def test_initial_parameters_are_aligned_and_theta_does_not_count_for_the_memory_of_a_call() -> None:
    """An evaluation reads theta of 4 kB in place;
    a training call has two candidates of 4 kB each.
    """
    created = task("large", model_kwargs={"size": 1000}, jobs_per_call=2)
    kept = [created.model.initial(seed) for seed in range(4)]
    assert not any(theta.ctypes.data % 64 for theta in kept)
    batch = 4
    assert created.single_call("batch").argument_bytes == batch
    assert created.training_call().argument_bytes == 8000 + batch


def test_rank_that_gets_its_state_from_elsewhere_does_not_create_initial_parameters(
    tmp_path: Path,
) -> None:
    for is_replaced, expected in ((True, 0.0), (False, np.float32(0.01))):
        problem = task("large", model_kwargs={"size": 4}).problem("vectors", None, Keys(5), 16)
        run = RunContext(tmp_path, 0, 1, lambda make: make(), is_state_replaced=is_replaced)
        problem.open(run)
        theta = problem.initial(np.random.default_rng(0))
        assert (theta.dtype, theta.tolist()) == (np.float32, [expected] * 4)


def test_each_pair_can_have_a_batch_of_its_own() -> None:
    outcome = evaluated(task(batches="pair", jobs_per_call=4), POINTS)
    for row, vector in enumerate(POINTS):
        expected, _ = by_hand(vector[[1, 2, 0]], own_models.points(batch_seed(4, row // 2)))
        assert outcome.rows["return_"][row] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["line", "convolving"])
@pytest.mark.parametrize("batches", ["generation", "pair"])
def test_result_of_a_candidate_does_not_depend_on_its_place_and_neighbours(
    name: str, batches: Any
) -> None:
    created = task(name, batches=batches, jobs_per_call=4)
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((4, created.model.layout.size)).astype(np.float32)
    groups = [0, 1, 2, 3]
    whole = evaluated(created, vectors, groups=groups).rows["return_"]
    backwards = evaluated(created, vectors[::-1], groups=groups[::-1]).rows["return_"]
    alone = [evaluated(created, vectors[i : i + 1], groups=[i]).rows["return_"][0] for i in groups]
    assert whole.tobytes() == backwards[::-1].tobytes() == np.array(alone).tobytes()


def test_evaluations_use_the_validation_data() -> None:
    created = task()
    assert created.problem("vectors", None, Keys(5), 16).evaluation_episodes == 1  # it has no seed
    outcome = evaluated(created, POINTS[:1], "evaluate", [0])
    expected, _ = by_hand(POINTS[0][[1, 2, 0]], own_models.points(1000, 100))
    assert outcome.rows["return_"][0] == pytest.approx(expected, rel=1e-4)


def test_evaluations_without_validation_data_have_further_batches() -> None:
    created = task("drawn")
    assert created.problem("vectors", None, Keys(5), 16).evaluation_episodes is None
    problem = created.problem("vectors", None, Keys(5), 16)
    vector = np.array([0, 1, 0], np.float32)  # the bias comes first
    jobs = Jobs(3, range(2), [0, 1], "evaluate")
    rows = problem.evaluate(
        unperturbed(problem.layout, vector, 2), jobs, problem.carried(), lambda: None
    ).rows
    for row in range(2):
        expected, _ = by_hand(vector[[1, 2, 0]], own_models.points(batch_seed(7, row)))
        assert rows["return_"][row] == pytest.approx(expected, rel=1e-4)


def test_candidate_with_an_infinite_score_is_dropped() -> None:
    outcome = evaluated(task("sometimes_infinite"), [[0, 1, 0], [0, -1, 0]])
    assert np.isnan(outcome.rows["return_"]).tolist() == [True, False]
    assert [(failure.position, failure.text) for failure in outcome.failures] == [
        (0, "the score is inf")
    ]


# Exceptions in code of the user that runs in evaluations. `steep` are the candidates whose score
# raises.

# bias, slope
CALLED = np.array([[0, -1, 1], [0, 2, 1], [1, -3, 0], [0, -2, 1], [2, 1, 0], [0, 3, 3]], np.float32)
STEEP = [False, True, False, False, True, True]


@pytest.mark.parametrize("batches", ["generation", "pair"])
@pytest.mark.parametrize("method", ["sequential", "expand_dims"])
def test_exception_in_called_code_fails_its_candidate_only(
    method: str, batches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In a full call and in one with padding;
    the others have the bits that they have without their neighbours.
    """
    created = task("calling", jobs_per_call=4, batches=batches, model_kwargs={"method": method})
    outcome = evaluated(created, CALLED)
    assert np.isnan(outcome.rows["return_"]).tolist() == STEEP
    assert [failure.position for failure in outcome.failures] == [1, 4, 5]
    for failure in outcome.failures:
        assert re.fullmatch(r"ValueError: too steep \(own_models\.py:\d+ in judged\)", failure.text)
        details = failure.details.splitlines()
        # without the frames of JAX
        assert (len(details), details[0]) == (4, "Traceback (most recent call last):")
        assert details[-2:] == ['    raise ValueError("too steep")', "ValueError: too steep"]
    # padding is no other candidate
    assert set(own_models.SEEN[method]) == set(CALLED[:, 1].tolist())
    for row in np.flatnonzero(~np.array(STEEP)).tolist():
        alone = evaluated(created, CALLED[row : row + 1], groups=[row // 2])
        assert alone.rows["return_"].tobytes() == outcome.rows["return_"][row : row + 1].tobytes()
    assert not caplog.records  # of JAX, with a traceback for each failed candidate


@pytest.mark.parametrize("purpose", ["evaluate", "probe"])
def test_exception_in_called_code_fails_an_evaluation(purpose: Any) -> None:
    outcome = evaluated(task("calling"), CALLED[:2], purpose)
    assert np.isnan(outcome.rows["return_"]).tolist() == STEEP[:2]
    assert [(failure.position, failure.kind[:10]) for failure in outcome.failures] == [
        (1, "ValueError")
    ]


def test_exception_in_called_code_ends_the_run_with_abort() -> None:
    with pytest.raises(
        RunError,
        match=r"task\.on_failed_evaluation is abort: job 1: ValueError: too steep \(own_models",
    ):
        evaluated(task("calling", on_failed_evaluation="abort"), CALLED)


@pytest.mark.parametrize(
    ("batches", "failed"), [("generation", [True] * 4), ("pair", [True, True, False, False])]
)
def test_exception_in_batch_fails_the_candidates_with_this_batch(
    batches: Any, failed: list[bool]
) -> None:
    created = task("calling", batches=batches, model_kwargs={"batches_fail": True})
    even, odd = (
        next(group for group in range(20) if batch_seed(4, group) % 2 == parity)
        for parity in (0, 1)
    )
    assert even == 0  # the batch of a generation is that of its first pair
    outcome = evaluated(created, np.stack([CALLED[0]] * 4), groups=[even, even, odd, odd])
    assert np.isnan(outcome.rows["return_"]).tolist() == failed
    assert re.fullmatch(
        rf"batch\({batch_seed(4, even)}\) of {MODELS}:calling fails: "
        r"OSError: no such shard \(own_models\.py:\d+ in batch\)",
        outcome.failures[0].text,
    )


def test_score_that_jax_cannot_trace_is_refused_at_the_start_and_the_message_names_pure_callback() -> (
    None
):
    created = task("plain_python")
    with pytest.raises(ConfigError) as caught:
        created.training_call().compile(lambda: None)
    text = str(caught.value)
    assert re.search(
        r"TracerArrayConversionError: The numpy.* with shape float32\[2\] \(own_models\.py:\d+ in",
        text,
    )
    assert text.endswith("or let it be called by jax.pure_callback (docs/guides/models.md)")


# Refusals.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "integers",
            "from tests.helpers.own_models:integers, found 'steps' int32[3] (12 bytes)",
        ),
        (
            "keras_integers",
            "/steps' int32[3, 2] (24 bytes): keep other arrays outside of the parameters",
        ),
        (
            "keras_frozen",
            "expected at least one parameter, a floating-point array, from tests.helpers",
        ),
        (
            "keras_twins",
            "task.model: tests.helpers.own_models:keras_twins returns a Keras model with two variables of the path "
            "'twins/dense/kernel': expected different names of layers and their weights, since paths name the",
        ),
        ("without_score", "found dict without score"),
        ("misspelt", "found 'validations'; did you mean 'validation'?"),
        ("missing", "there is no 'missing' in tests.helpers.own_models"),
    ],
)
def test_wrong_model_is_refused_when_it_is_built(name: str, text: str) -> None:
    if name.startswith("keras"):
        own_models.skip_without_keras()
    with pytest.raises(ConfigError) as caught:
        task(name)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vector_score", "found float32[8] as fitness: take its mean"),
        (
            "nan_score",
            "found nan on validation(0) of tests.helpers.own_models:nan_score, (float32[100, 2], float32[100]) "
            "(1.2 kB): look for overflow, division by 0 and logarithms in score",
        ),
        (
            "keras_nan_score",
            "found nan on batch(0) of tests.helpers.own_models:keras_nan_score, (float32[8, 2], ",
        ),
        (
            "nan_batches",
            "correct them: 1 of 16 values of batch/x float32[8, 2] (64 bytes) are not finite",
        ),
        (
            "random_score",
            "two calls of score of tests.helpers.own_models:random_score with the same arguments return",
        ),
        ("keras_random_score", "with the same arguments return"),
        (
            "growing_batches",
            "returns (float32[9, 2], float32[9]) (108 bytes), but an earlier call returned (float32[8, 2], float32[8]) "
            "(96 bytes): expected batches of one shape",
        ),
        (
            "keras_growing_batches",
            "returns (float32[9, 2], float32[9]) (108 bytes), but an earlier call returned",
        ),
        (
            "keras_training",
            "keras_training changes sequential/norm/moving_mean, which compiled calls cannot keep",
        ),
        (
            "keras_dropping",
            "keras_dropping draws random numbers, which compiled calls cannot keep: expected no",
        ),
        ("keras_random_constants", "returns other parameters or batches when it is called again"),
        (
            "random_batches",
            "two calls of batch(0) of tests.helpers.own_models:random_batches differ",
        ),
        ("random_parameters", "returns other parameters or batches when it is called again"),
        (
            "failing_score",
            "fails on a batch (float32[8, 2], float32[8]): KeyError: 'slop'",
        ),
    ],
)
def test_wrong_model_is_refused_by_check(name: str, text: str) -> None:
    if name.startswith("keras"):
        own_models.skip_without_keras()
    problem = task(name, jobs_per_call=2).problem("vectors", None, Keys(5), 16)
    with pytest.raises(ConfigError) as caught:
        problem.check()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "name", ["everything", "module", "weights", "nested", "function", "method", "score", "metric"]
)
def test_objects_of_pytorch_are_refused_with_what_works(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task("torch_objects", model_kwargs={"name": name}).training_call().trace()
    what = "module" if name in ("everything", "module", "method") else "tensor"
    assert f"{MODELS}:torch_objects returns a PyTorch {what} (torch." in str(caught.value)
    is_score = name in ("score", "metric")
    remedy = (
        "number that JAX computes"
        if is_score
        else "such as {name: value.float().numpy() for name, value"
    )
    assert remedy in str(caught.value) and str(caught.value).endswith("(docs/guides/models.md)")


def test_engines_are_refused_with_the_option_that_takes_them() -> None:
    text = r"own_engines:Held returns an engine \(Held\), .*: set task.call: each"
    with pytest.raises(ConfigError, match=text):
        build(Options(model="tests.helpers.own_engines:Held"))


def test_metric_that_differs_between_calls_is_refused() -> None:
    problem = task("random_metrics", ("absolute",), jobs_per_call=2).problem(
        "vectors", None, Keys(5), 16
    )
    with pytest.raises(ConfigError, match="with the same arguments return other metrics"):
        problem.check()


def test_call_that_does_not_fit_the_memory_is_refused_before_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 candidates of a million numbers of 4 bytes are 64 MB; beside theta,
    50 MB have room for 11.
    """
    monkeypatch.setattr(machine, "memory_bytes", lambda: 50_000_000)
    with pytest.raises(ConfigError) as caught:
        task("large", model_kwargs={"size": 1_000_000}).problem(
            "vectors", None, Keys(5), 16
        ).check()
    assert str(caught.value) == (
        "task.jobs_per_call: is 16: expected a call that fits the memory of the machine, 50 MB, found parameters "
        "float32[1000000] 4 MB, a call of 16 candidates with its intermediate arrays 64 MB: try 11"
    )


def test_intermediate_arrays_that_do_not_fit_the_memory_are_refused_before_the_score_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two arrays of 4 MB or more for each candidate,
    in a matrix product with what comes before and after it.
    """
    monkeypatch.setattr(jax_model.ScoreCall, "compute", lambda *_: pytest.fail("score was called"))
    for memory, key in ((40_000_000, "task.jobs_per_call: is 8: "), (6_000_000, "task.model: ")):
        monkeypatch.setattr(machine, "memory_bytes", lambda memory=memory: memory)
        jobs = 8 if key.startswith("task.jobs_per_call") else 1
        problem = task("huge", model_kwargs={"size": 1000}, jobs_per_call=jobs).problem(
            "vectors", None, Keys(5), 16
        )
        if jobs == 1:
            monkeypatch.setattr(problem._task.training_call(), "total_bytes", lambda poll: 0)
        with pytest.raises(ConfigError) as caught:
            problem.check()
        text = str(caught.value)
        assert text.startswith(f"{key}expected a call that fits the memory of the machine, "), text
        assert "float32[1000] 4 kB" in text
        array = "f32[8,1000,1000] 32 MB" if jobs == 8 else "f32[1000,1000] 4 MB"
        assert f"the largest of them {array}" in text


def test_memory_of_products_inside_libraries_is_that_of_results_and_computed_operands() -> None:
    """Operands of 12 numbers of 4 bytes, and a result of 9. The second part is smaller."""
    program = """
%first (param_0: f32[3,4]) -> f32[] {
  %param_0 = f32[3,4]{1,0} parameter(0)
  %mul.0 = f32[3,4]{1,0} multiply(%param_0, %param_0)
  %dot.0 = f32[3,3]{1,0} dot(%mul.0, %mul.0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %tanh.0 = f32[3,3]{1,0} tanh(%dot.0)
  ROOT %sum = f32[] reduce(%tanh.0, %zero), dimensions={0,1}, to_apply=%add
}

%second (param_0: bf16[3,4], param_1: bf16[4,8]) -> bf16[3,8] {
  %param_0 = bf16[3,4]{1,0} parameter(0)
  %param_1 = bf16[4,8]{1,0} parameter(1)
  ROOT %dot.1 = bf16[3,8]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%third (param_0: f32[99,99]) -> f32[99,99] {
  ROOT %dot.2 = f32[99,99]{1,0} dot(%param_0, %param_0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[3,4]) -> f32[] {
  %f = f32[] fusion(%x), kind=kCustom, calls=%first, backend_config={}
  %g = bf16[3,8] fusion(%y, %z), kind=kCustom, calls=%second
  %h = f32[99,99] fusion(%v), kind=kLoop, calls=%third
}
"""
    assert jax_model.library_bytes(program) == 4 * (12 + 12 + 9)
    assert jax_model.library_bytes(program.replace("calls=%first", "calls=%other")) == 2 * 3 * 8
    assert jax_model.library_bytes("") == 0


def test_check_announces_long_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_task, "ANNOUNCED_SECONDS", 0.0)
    task("huge", model_kwargs={"size": 100}, jobs_per_call=1).problem(
        "vectors", None, Keys(5), 16
    ).check()
    lines = capsys.readouterr().err.splitlines()
    name = "tests.helpers.own_models:huge"
    assert lines[:2] == [f"{name}: compilation took more than 0 s so far"] * 2
    assert re.fullmatch(
        rf"{name}: two calls of score, which need [\d.]+ kB each, took more than 0 s so far",
        lines[2],
    )


def test_state_of_the_search_counts_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theta and two arrays of Adam are 12 MB, so that 50 MB have room for 9 candidates."""
    monkeypatch.setattr(machine, "memory_bytes", lambda: 50_000_000)
    problem = task("large", model_kwargs={"size": 1_000_000}, jobs_per_call=10).problem(
        "vectors", None, Keys(5), 16
    )
    problem.check()
    state = {name: np.zeros(1_000_000, np.float32) for name in ("theta", "adam_m", "adam_v")}
    with pytest.raises(ConfigError) as caught:
        problem.check_memory(state)
    text = (
        "parameters float32[1000000] 4 MB, other arrays of the search 8 MB, a call of 10 candidates"
    )
    assert text in str(caught.value) and str(caught.value).endswith(": try 9")
    monkeypatch.setattr(machine, "memory_bytes", lambda: 11_000_000)
    with pytest.raises(ConfigError) as caught:
        problem.check_memory(state)
    assert str(caught.value).startswith(
        "task.model: expected a search that fits the memory of this machine, 11 MB"
    )


def test_unknown_metric_is_refused() -> None:
    problem = task(metrics=("absolut",)).problem("vectors", None, Keys(5), 16)
    with pytest.raises(ConfigError) as caught:
        problem.check()
    assert str(caught.value).startswith(
        "report.info: has 'absolut', which score of tests.helpers.own_models:line does"
    )
    assert "did you mean 'absolute'?" in str(caught.value)


def test_good_models_pass_the_check() -> None:
    for name in ("line", "drawn", "convolving"):
        created = task(name, jobs_per_call=2)
        created.problem("vectors", None, Keys(5), 16).check()
        assert created.check_lines[0].startswith(f"model {MODELS}:{name}: ")


def test_check_names_the_constants_of_a_keras_model() -> None:
    own_models.skip_without_keras()
    line = task("keras_layers", jobs_per_call=2).check_lines[-1]
    names = ("dense/kernel", "dense/bias", "norm/moving_mean", "norm/moving_variance")
    assert line == f"constants, not searched: {', '.join(f'sequential/{name}' for name in names)}"


# Quantities.


def test_quantities_are_the_score_and_metrics_of_a_call() -> None:
    options = {
        "objectives": {"score": ObjectiveOptions(goal="maximise")},
        "measures": {"error": MeasureOptions(range=(0.0, 9.0), source="absolute")},
        "constraints": {"limit": SourceOptions(source="absolute")},
    }
    created = task(**options)
    outcome = evaluated(created, POINTS[:2])
    batch = own_models.points(batch_seed(4, 0))
    for row, vector in zip(outcome.rows, POINTS, strict=False):
        score, error = by_hand(vector[[1, 2, 0]], batch)  # the bias comes first in the vector
        assert row["objectives"] == pytest.approx([score], rel=1e-4, abs=1e-6)
        assert row["measures"] == row["constraints"] == pytest.approx([error], rel=1e-4, abs=1e-6)
    problem = created.problem("vectors", None, Keys(5), 16)
    # none is feasible: the fitness is minus the violation
    infeasible = -outcome.rows["constraints"][:, 0]
    assert problem.derives_fitness
    assert problem.fitness(outcome.rows, problem.carried()).tolist() == pytest.approx(
        infeasible.tolist()
    )
    with pytest.raises(ConfigError, match=r"task.measures: .*'slope'"):
        evaluated(task(measures={"slope": MeasureOptions(range=(0.0, 1.0))}), POINTS[:1])
