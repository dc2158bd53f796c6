"""TensorFlow, imported when it is first asked for.

It gets one thread and deterministic operations unless TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS or
TF_DETERMINISTIC_OPS say otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from hpc_es.core.errors import ConfigError
from hpc_es.core.extras import lacking
from hpc_es.mpi.devices import import_tensorflow


@functools.cache
def tensorflow() -> Any:
    """Return the module, set up once; ConfigError where it is not installed."""
    if text := lacking("tensorflow"):
        raise ConfigError([("policy.backend", f"is tensorflow, which needs {text}, or choose numpy")])
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # ranks may share a GPU
    tf = import_tensorflow()
    threading = tf.config.threading
    with contextlib.suppress(RuntimeError):  # somebody has used TensorFlow already, with threads of their own
        if "TF_NUM_INTRAOP_THREADS" not in os.environ and not threading.get_intra_op_parallelism_threads():
            threading.set_intra_op_parallelism_threads(1)
        if "TF_NUM_INTEROP_THREADS" not in os.environ and not threading.get_inter_op_parallelism_threads():
            threading.set_inter_op_parallelism_threads(1)
    if "TF_DETERMINISTIC_OPS" not in os.environ:
        tf.config.experimental.enable_op_determinism()
    return tf
