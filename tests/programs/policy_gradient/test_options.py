"""The optimizers of `policy_gradient`: those of all algorithms, with fewer options."""

from __future__ import annotations

import numpy as np

from hpc_es.extend import OptimizerOptions, optimizer_step
from hpc_es.extend.optimizers import initial_slots
from hpc_es.programs.policy_gradient.options import Optimizer


def test_rmsprop_is_that_of_all_algorithms() -> None:
    """ms = 0.5 * 1 + 0.5 * 4 = 2.5, and -1 * 2 / sqrt(2.5 + 1.5) = -1."""
    own = Optimizer(kind="rmsprop", learning_rate=1.0, rmsprop_decay=0.5, rmsprop_epsilon=1.5)
    options = own.full()
    assert isinstance(options, OptimizerOptions)
    _, move = optimizer_step(options, initial_slots(options, 1), np.array([2], np.float32))
    np.testing.assert_allclose(move, [-1.0])
