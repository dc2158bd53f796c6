"""One-line reasons of failed jobs, with the location in user code."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import numpy as np
import pytest

from hpc_es.config.loading import validate
from hpc_es.core import errors
from hpc_es.core.callbacks import callback_errors
from hpc_es.core.errors import (
    MAX_DETAILS,
    EvaluationError,
    Failure,
    failure_from_error,
    failure_from_text,
    shortened,
)


def in_frozen_modules() -> None:
    os.environ["MISSING_LICENSE_FILE"]  # raises in <frozen os>


def in_the_standard_library() -> None:
    json.loads("{")


def in_another_module() -> None:
    statistics.mean([])


def in_a_package() -> None:
    np.stack([])


def in_ours() -> None:
    validate({})


def several_lines() -> None:
    raise ValueError("one\n  two")


def failed(function: object) -> Failure:
    assert callable(function)
    try:
        function()
    except Exception as error:
        return failure_from_error(error, 3)
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (in_frozen_modules, "KeyError"),
        (in_the_standard_library, "JSONDecodeError"),
        (in_another_module, "StatisticsError"),
        (in_a_package, "ValueError"),
        (in_ours, "ConfigError"),
    ],
)
def test_failure_location_is_the_deepest_frame_of_user_code(function: object, name: str) -> None:
    code = function.__code__  # type: ignore[attr-defined]
    failure = failed(function)
    assert (
        failure.kind
        == f"{name} at test_errors_failures.py:{code.co_firstlineno + 1} in {code.co_name}"
    )
    assert failure.text.startswith(f"{name}: ") and failure.text.endswith(
        f"(test_errors_failures.py:{code.co_firstlineno + 1} in {code.co_name})"
    )
    assert failure.details.startswith("Traceback (most recent call last)") and failure.position == 3


def test_failure_location_without_user_code_is_the_deepest_frame() -> None:
    try:
        eval(compile("import json; json.loads('{')", "<string>", "exec"), {})
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]  # without this file's frame
        assert failure_from_error(error).kind.startswith("JSONDecodeError at decoder.py:")


def test_error_that_was_not_raised_has_no_location() -> None:
    failure = failure_from_error(ValueError("the observation is NaN at step 17"))
    assert failure == Failure(
        "ValueError: the observation is NaN at step 17",
        "ValueError: the observation is NaN at step #",
    )


def test_failure_text_is_one_line_and_its_kind_ignores_numbers() -> None:
    assert failed(several_lines).text.startswith("ValueError: one two (")
    assert (
        len(
            {
                failure_from_text(text).kind
                for text in ("the value is -1.5e+3", "the value is -20", "the value is -0.1")
            }
        )
        == 1
    )
    assert failure_from_text("the value is nan").kind != failure_from_text("the value is inf").kind
    assert failure_from_text("x" * 3000).text == "x" * 1000 + " ..."


def test_long_failure_details_keep_both_ends() -> None:
    details = shortened("a" * 20_000 + "b" * 20_000)
    half = MAX_DETAILS // 2
    assert details == "a" * half + "\n  ... 24,000 characters omitted ...\n" + "b" * half


@pytest.mark.parametrize(
    ("path", "is_users"),
    [
        ("/home/me/cost.py", True),
        ("/home/me/venv/lib/python3.11/site-packages/numpy/linalg.py", False),
        (os.__file__, False),
        (errors.__file__, False),
        ("<string>", False),
        ("~", False),
        ("/tmp/__autograph_generated_file04iq.py", False),
    ],
)
def test_user_file_is_outside_of_python_packages_and_hpc_es(path: str, is_users: bool) -> None:
    assert errors.is_user_file(path) is is_users


# Errors of compiled calls, with the traceback of what they called in their text.

OF_JAX = f"""INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
  File "{Path(errors.__file__).parents[1]}/devices/jax_setup.py", line 9, in in_thread
  File "/venv/lib/python3.11/site-packages/jax/_src/callback.py", line 71, in __call__
  File "/home/me/reward.py", line 6, in judge
  File "/venv/lib/python3.11/site-packages/numpy/linalg.py", line 90, in solve
LinAlgError: singular
matrix"""
OF_TENSORFLOW = """{{function_node __wrapped__EagerPyFunc}} LinAlgError: singular
matrix
Traceback (most recent call last):

  File "/venv/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 2, in __call__
    return func(device, token, args)

  File "/home/me/reward.py", line 6, in judge
    solve(x)
    ^^^^^^^^

  File "/venv/lib/python3.11/site-packages/numpy/linalg.py", line 90, in solve
    raise LinAlgError

LinAlgError: singular
matrix

\t [[{{node EagerPyFunc}}]] [Op:__inference_call_7]"""


@pytest.mark.parametrize(
    ("module", "base", "text"),
    [
        ("jax.errors", RuntimeError, OF_JAX),
        ("builtins", ValueError, OF_JAX),  # from JAX's fast path
        ("tensorflow.python.framework.errors_impl", Exception, OF_TENSORFLOW),
    ],
)
def test_failure_of_called_code_is_that_of_the_user_without_the_frames_of_libraries(
    module: str, base: type[Exception], text: str
) -> None:
    error = (
        base(text) if module == "builtins" else type("Error", (base,), {"__module__": module})(text)
    )
    assert failure_from_error(error, 3) == Failure(
        "LinAlgError: singular matrix (reward.py:6 in judge)",
        "LinAlgError at reward.py:6 in judge",
        "Traceback (most recent call last):\n"
        '  File "/home/me/reward.py", line 6, in judge\n'
        '  File "/venv/lib/python3.11/site-packages/numpy/linalg.py", line 90, in solve\n'
        "LinAlgError: singular\nmatrix\n",
        3,
    )
    with pytest.raises(EvaluationError) as caught, callback_errors:
        raise error
    assert str(caught.value).endswith(
        "compiled call calls fails: LinAlgError: singular matrix (reward.py:6 in judge)"
    )


@pytest.mark.parametrize(
    "error", [ValueError(OF_TENSORFLOW), RuntimeError(OF_JAX.partition("\n")[2]), KeyError(3)]
)
def test_other_errors_are_not_of_called_code(error: Exception) -> None:
    assert errors.failure_of_called_code(error) is None
    with pytest.raises(type(error)), callback_errors:
        raise error
