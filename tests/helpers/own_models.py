"""Models of every kind that `task: {kind: model}` takes, as a user writes them, and wrong ones.

model: tests.helpers.own_models:line
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers import fake_torch

DIMENSIONS = ("NWC", "WIO", "NWC")
SLOPE = np.array([2.0, -1.0], np.float32)  # of the data


def skip_without_keras() -> None:
    """Skip the test if Keras is missing or has another backend than JAX, without importing it.

    hpc_es selects the backend before a user's module imports Keras. Without TensorFlow, an earlier
    import fails, and later ones in the same process then give a broken Keras.
    """
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed here: make test-jax")
    if (keras := sys.modules.get("keras")) is not None and keras.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend")


def points(seed: int, rows: int = 8) -> Any:
    """Points of the plane y = x . SLOPE + 1: float32[rows, 2] and float32[rows]."""
    x = np.random.default_rng(seed).standard_normal((rows, 2)).astype(np.float32)
    return x, x @ SLOPE + np.float32(1)


def squares(parameters: Any, batch: Any) -> Any:
    """The negative mean of squared errors, and the mean of absolute ones."""
    import jax.numpy as jnp

    x, y = batch
    errors = x @ parameters["slope"] + parameters["offset"]["bias"] - y
    return -jnp.mean(errors**2), {
        "absolute": jnp.mean(jnp.abs(errors)),
        "rows": jnp.float32(len(x)),
    }


def line(rows: int = 8) -> Any:
    """A dict of functions; parameters are zeros."""
    return {
        "parameters": {
            "slope": np.zeros(2, np.float32),
            "offset": {"bias": np.zeros((), np.float32)},
        },
        "score": squares,
        "batch": lambda seed: points(seed, rows),
        "validation": lambda: points(1000, 100),
    }


def drawn() -> Any:
    """An object whose parameters are a function of a seed, in half precision;
    evaluations have further batches.
    """
    import jax

    def parameters(seed: int) -> Any:
        return {
            "slope": jax.random.normal(jax.random.key(seed), (2,), "bfloat16"),
            "offset": {"bias": np.float32(0.5)},
        }

    return SimpleNamespace(parameters=parameters, score=squares, batch=points)


def keras_line() -> Any:
    """A Keras model with a layer that acts differently in training."""
    import keras

    def build(seed: int) -> Any:
        layers = [
            keras.Input((2,)),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
        return keras.Sequential(layers)

    def score(model: Any, batch: Any) -> Any:
        x, y = batch
        return -((model(x)[:, 0] - y) ** 2).mean()

    return {"parameters": build, "score": score, "batch": points}


def keras_layers() -> Any:
    """A Keras model with dropout, statistics of BatchNorm other than those of a new layer,
    and a frozen layer.
    """
    import keras

    def build(seed: int) -> Any:
        layers = [
            keras.Input((2,)),
            keras.layers.Dense(16, "tanh", trainable=False),
            keras.layers.Dense(16, "tanh"),
        ]
        layers += [
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        norm = model.get_layer("norm")
        norm.moving_mean.assign(np.linspace(-1, 1, 16))
        norm.moving_variance.assign(np.linspace(0.5, 2, 16))
        return model

    return {**keras_line(), "parameters": build, "validation": lambda: points(1000, 100)}


def keras_twins() -> Any:
    """A subclassed model, two of whose layers have one name."""
    import keras

    class Twins(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="twins")
            self.first, self.second = (
                keras.layers.Dense(3, name="dense"),
                keras.layers.Dense(1, name="dense"),
            )

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = Twins()
    model(np.zeros((1, 2), np.float32))
    return {**keras_line(), "parameters": model}


def keras_training() -> Any:
    """A Keras model whose statistics of BatchNorm would change."""
    return {**keras_layers(), "score": lambda model, batch: model(batch[0], training=True).sum()}


def keras_dropping() -> Any:
    """A Keras model with a layer that draws random numbers."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    return {**keras_training(), "parameters": model}


def keras_random_constants() -> Any:
    """A Keras model with a frozen layer whose weights differ from call to call."""
    import keras

    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, trainable=False), keras.layers.Dense(1)]
    )
    model.layers[0].bias.assign([next(COUNTER)])
    return {**keras_line(), "parameters": model}


def convolving() -> Any:
    """A convolution, which is computed one candidate after the other on a CPU."""
    import jax

    def score(parameters: Any, batch: Any) -> Any:
        result = jax.lax.conv(batch, parameters["kernel"], (1, 1), "VALID")
        return -(result**2).mean()

    def batch(seed: int) -> Any:
        return np.random.default_rng(seed).standard_normal((2, 1, 5, 5)).astype(np.float32)

    return {
        "parameters": {"kernel": np.ones((2, 1, 3, 3), np.float32)},
        "score": score,
        "batch": batch,
    }


def layers() -> Any:
    """Rows of a table, a loop over a recurrent kernel, a convolution and dense layers,
    one in half precision.
    """
    import jax
    import jax.numpy as jnp

    def parameters(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        shapes = {
            "table": (20, 12),
            "recurrent": (12, 12),
            "kernel": (3, 12, 12),
            "hidden": (12, 16),
            "last": (16, 5),
        }
        tree = {
            name: rng.normal(size=shape).astype(np.float32) / 3 for name, shape in shapes.items()
        }
        return {
            **tree,
            "hidden": jnp.asarray(tree["hidden"], jnp.bfloat16),
            "bias": np.zeros(5, np.float32),
        }

    def score(tree: Any, batch: Any) -> Any:
        tokens, labels = batch
        x = jnp.take(tree["table"], tokens, axis=0)  # [rows, steps, 12]
        start = jnp.zeros((len(tokens), 12))
        _, x = jax.lax.scan(
            lambda h, x: (jnp.tanh(x + h @ tree["recurrent"]),) * 2, start, x.swapaxes(0, 1)
        )
        x = jax.lax.conv_general_dilated(
            x.swapaxes(0, 1), tree["kernel"], (1,), "VALID", dimension_numbers=DIMENSIONS
        )
        x = jnp.tanh(x.mean(axis=1).astype(jnp.bfloat16) @ tree["hidden"]).astype(jnp.float32)
        return jax.nn.log_softmax(x @ tree["last"] + tree["bias"])[
            jnp.arange(len(labels)), labels
        ].mean()

    def batch(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return rng.integers(20, size=(6, 4)).astype(np.int32), rng.integers(5, size=6).astype(
            np.int32
        )

    return {"parameters": parameters, "score": score, "batch": batch}


def sometimes_infinite() -> Any:
    """The score of candidates with a positive slope is infinite."""
    import jax.numpy as jnp

    def score(parameters: Any, batch: Any) -> Any:
        return jnp.where(parameters["slope"][0] > 0, jnp.inf, squares(parameters, batch)[0])

    return {**line(), "score": score}


def calling(method: str = "sequential", batches_fail: bool = False) -> Any:
    """A score whose value Python code computes; it raises for candidates with a positive slope.

    SEEN has the slopes that the code has got. With `batches_fail`, batches of even seeds but 0
    raise.
    """
    import jax
    import jax.numpy as jnp

    def judged(slope: Any, value: Any) -> Any:
        seen.extend(np.ravel(slope).tolist())
        if np.any(np.asarray(slope) > 0):
            raise ValueError("too steep")
        return np.float32(value)

    def score(parameters: Any, batch: Any) -> Any:
        arguments = parameters["slope"][0], squares(parameters, batch)[0]
        return jax.pure_callback(
            judged, jax.ShapeDtypeStruct((), jnp.float32), *arguments, vmap_method=method
        )

    def batch(seed: int) -> Any:
        if batches_fail and seed and seed % 2 == 0:
            raise OSError("no such shard")
        return points(seed)

    seen = SEEN[method] = []
    return {**line(), "score": score, "batch": batch}


SEEN: dict[str, list[float]] = {}  # by method


def plain_python() -> Any:
    """A score in NumPy, which JAX cannot trace."""
    return {
        **line(),
        "score": lambda parameters, batch: np.square(np.asarray(parameters["slope"])).sum(),
    }


def torch_objects(name: str) -> Any:
    """What a user of PyTorch returns."""
    module, tensor = fake_torch.Linear(), fake_torch.Tensor()
    changes = {
        "module": {"parameters": module},
        "weights": {"parameters": dict(module.state_dict())},
        "nested": {"parameters": {"layers": [module.state_dict()]}},
        "function": {"parameters": lambda seed: module.state_dict()},
        "method": {"parameters": module.state_dict},
        "score": {"score": lambda parameters, batch: tensor},
        "metric": {"score": lambda parameters, batch: (1.0, {"absolute": tensor})},
    }
    return module if name == "everything" else {**line(), **changes[name]}


def large(size: int) -> Any:
    """A vector of this size, whose score is cheap."""
    return {
        "parameters": lambda seed: {"weights": np.full(size, 0.01, np.float32)},
        "score": lambda parameters, batch: -((parameters["weights"] - batch) ** 2).mean(),
        "batch": lambda seed: np.float32(seed % 7),
    }


# Wrong ones.

COUNTER = itertools.count()


def integers() -> Any:
    """A tree with an array of whole numbers."""
    return {
        **line(),
        "parameters": {"slope": np.zeros(2, np.float32), "steps": np.zeros(3, np.int32)},
    }


def keras_integers() -> Any:
    """A Keras model with a trainable variable of whole numbers."""
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.steps = self.add_weight(
                shape=(3, 2), dtype="int32", initializer="zeros", name="steps"
            )

        def call(self, x: Any) -> Any:
            return x

    return {
        **keras_line(),
        "parameters": keras.Sequential([keras.Input((2,)), Counting(), keras.layers.Dense(1)]),
    }


def keras_frozen() -> Any:
    """A Keras model without a trainable variable."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.trainable = False
    return {**keras_line(), "parameters": model}


def without_score() -> Any:
    """No score."""
    return {"parameters": np.zeros(2), "batch": points}


def misspelt() -> Any:
    """A member of another name."""
    return {**line(), "validations": points}


def vector_score() -> Any:
    """A score that is not one number."""
    return {**line(), "score": lambda parameters, batch: batch[1]}


def nan_score() -> Any:
    """A score that is not finite."""
    return {**line(), "score": lambda parameters, batch: squares(parameters, batch)[0] * np.nan}


def nan_batches() -> Any:
    """Batches with a value that is not finite."""

    def batch(seed: int) -> Any:
        x, y = points(seed)
        x[1, 0] = np.inf
        return {"x": x, "y": y}

    def score(parameters: Any, batch: Any) -> Any:
        return squares(parameters, (batch["x"], batch["y"]))

    return {"parameters": line()["parameters"], "score": score, "batch": batch}


def keras_nan_score() -> Any:
    """A Keras model whose score is not finite."""
    return {**keras_line(), "score": lambda model, batch: model(batch[0]).sum() * np.nan}


def keras_random_score() -> Any:
    """A Keras model whose score differs from call to call."""
    return {**keras_line(), "score": lambda model, batch: model(batch[0]).sum() - next(COUNTER)}


def keras_growing_batches() -> Any:
    """A Keras model with batches of changing shape."""
    return {**keras_line(), "batch": lambda seed: points(seed, 8 + seed)}


def random_metrics() -> Any:
    """A metric that differs from call to call."""
    return {
        **line(),
        "score": lambda parameters, batch: (
            squares(parameters, batch)[0],
            {"absolute": next(COUNTER)},
        ),
    }


def random_score() -> Any:
    """A score that differs from call to call."""
    return {
        **line(),
        "score": lambda parameters, batch: squares(parameters, batch)[0] - next(COUNTER),
    }


def growing_batches() -> Any:
    """Batches of changing shape."""
    return {**line(), "batch": lambda seed: points(seed, 8 + seed)}


def random_batches() -> Any:
    """Batches that do not follow from the seed."""
    return {**line(), "batch": lambda seed: points(next(COUNTER))}


def random_parameters() -> Any:
    """Parameters that differ from call to call."""
    return {
        **line(),
        "parameters": {
            "slope": np.full(2, next(COUNTER), np.float32),
            "offset": {"bias": np.zeros(())},
        },
    }


def failing_score() -> Any:
    """A score that raises."""
    return {**line(), "score": lambda parameters, batch: parameters["slop"]}


def huge(size: int) -> Any:
    """A score with a matrix product of intermediate arrays of size x size, of a few parameters."""
    import jax.numpy as jnp

    def score(parameters: Any, batch: Any) -> Any:
        outer = parameters["w"][:, None] * batch[None, :]
        return jnp.tanh(outer @ outer.T).mean()

    def batch(seed: int) -> Any:
        return np.random.default_rng(seed).standard_normal(size).astype(np.float32)

    return {"parameters": {"w": np.ones(size, np.float32)}, "score": score, "batch": batch}
