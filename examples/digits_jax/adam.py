"""The same network, batches and test images with Adam along gradients:
python examples/digits_jax/adam.py [STEPS].
"""

from __future__ import annotations

import sys

import jax
import optax
from digits_model import make


def main(steps: int = 500, seed: int = 0) -> None:
    """Print the accuracy on the test images in intervals of steps."""
    model = make()
    parameters, optimizer = model["parameters"](seed), optax.adam(0.01)
    state = optimizer.init(parameters)

    @jax.jit
    def update(parameters: object, state: object, batch: object) -> tuple[object, object]:
        gradient = jax.grad(lambda tree: -model["score"](tree, batch)[0])(parameters)
        changes, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, changes), state

    for step in range(steps + 1):
        if step % max(steps // 10, 1) == 0:
            fitness, metrics = model["score"](parameters, model["validation"]())
            sys.stdout.write(
                f"step {step:5}  cross-entropy {-fitness:.4f}  accuracy {metrics['accuracy']:.4f}\n"
            )
        parameters, state = update(parameters, state, model["batch"](seed * 1_000_000 + step))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
