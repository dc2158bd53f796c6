"""Exceptions of Python code that compiled calls call, such as by `jax.pure_callback`."""

from __future__ import annotations

from types import TracebackType

from hpc_es.core.errors import EvaluationError, failure_of_called_code


class CallbackErrors:
    """Turns the error of a compiled call into an EvaluationError if called code has failed.

    It is a context manager.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and (failure := failure_of_called_code(error)):
            raise EvaluationError(
                f"Python code that a compiled call calls fails: {failure.text}", failure
            ) from None


callback_errors = CallbackErrors()
