"""Export of a policy as one file of Python that needs NumPy alone.

The file has the weights as text and a function `policy(observation)`, with the wrappers of the
environment, the observation normaliser and the action head; a recurrent policy also has `reset()`.
It is for other programs: a robot, a simulator, a web service, a notebook of a colleague.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_es.core.data import (
    Array,
    Choices,
    Discrete,
    Float32,
    MultiDiscrete,
    Normaliser,
    Part,
    Spaces,
    parts_of,
)
from hpc_es.core.policy import Policy
from hpc_es.policies.cnn import ConvolutionalPolicy, VirtualBatchPolicy
from hpc_es.policies.lstm import LSTM
from hpc_es.policies.mlp import MLP
from hpc_es.policies.networks.heads import Head
from hpc_es.policies.networks.keras_models import (
    Affine,
    Clip,
    EnvironmentTransformations,
    Transformation,
)

FILE = '''\
"""{title}

    from {module} import policy{more}

    action = policy(observation){hint}
"""

import numpy as np

TEXTS = {{
{texts}
}}
P = {{
    name: np.frombuffer(bytes.fromhex(text), "<f4").reshape(shape)
    for name, (shape, text) in TEXTS.items()
}}
{network}

def policy(observation):
    """Return {action} for one observation, {observation}."""
    x = {vector}{scale}
{steps}'''

ACTIVATIONS = {
    "tanh": "np.tanh(x)",
    "relu": "np.maximum(x, 0)",
    "leaky_relu": "np.maximum(x, np.float32(0.2) * x)",
    "elu": "np.where(x < 0, np.expm1(np.minimum(x, 0)), x)",
}

DENSE = """

def activate(x):
    return {activation}


def network(x):
    x = x.ravel()
    for name in {hidden}:
        x = activate({normalised}({dense}))
    name = "output"
    return {dense}
"""
ONE_HOT = """

def one_hot(values, counts, starts):
    vectors = [np.zeros(count, np.float32) for count in counts]
    for vector, value, start in zip(vectors, np.ravel(values), starts):
        vector[int(value) - start] = 1
    return np.concatenate(vectors)
"""
LAYER_NORMALISED = """

def normalised(x):
    x = x - x.mean()
    return x / np.sqrt((x * x).mean() + np.float32(1e-5))
"""

RECURRENT = '''

MEMORY = {{}}  # h and c of each layer


def reset():
    """Begin a new episode."""
    MEMORY.clear()


def cell(x, name):
    kernel, bias = P[name + "_kernel"], P[name + "_bias"]
    h, c = MEMORY.get(name, np.zeros((2, len(bias) // 4), np.float32))
    i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
    c = c / (1 + np.exp(-f - 1)) + np.tanh(j) / (1 + np.exp(-i))
    MEMORY[name] = np.tanh(c) / (1 + np.exp(-o)), c
    return MEMORY[name][0]
'''
LSTM_LAYERS = """

def network(x):
    x = x.ravel()
    for name in {layers}:
        x = cell(x, name)
    return x @ P["output_kernel"] + P["output_bias"]
"""
CONVOLUTIONAL = '''

def activate(x):
    return {activation}


def convolution(x, kernel, stride):
    """Return x [height, width, channels] convolved with [k, k, channels, filters]."""
    k = len(kernel)
    if {is_same}:
        sizes = [max((-(-n // stride) - 1) * stride + k - n, 0) for n in x.shape[:2]]
        x = np.pad(x, [(n // 2, n - n // 2) for n in sizes] + [(0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), (0, 1))[::stride, ::stride]
    return np.tensordot(windows, kernel, ((3, 4, 2), (0, 1, 2)))


def affine(x, number, name):
    if {is_normalised}:
        x = x - x.mean()
        x = x / np.sqrt((x * x).mean() + np.float32(1e-5))
        return x * P[f"norm_{{number}}_gamma"] + P[f"norm_{{number}}_beta"]
    return x + P[name + "_bias"]


def network(x):
    x = x.reshape({image})
    for number, stride in enumerate({strides}):
        name = f"conv_{{number}}"
        x = activate(affine(convolution(x, P[name + "_kernel"], stride), number, name))
    x = x.ravel()
    for number in range({hidden}):
        name = f"hidden_{{number}}"
        x = activate(affine(x @ P[name + "_kernel"], {convolutions} + number, name))
{memory}    return x @ P["output_kernel"] + P["output_bias"]
'''


def plain_words(text: str) -> str:
    """Return a text without what could end the docstring that it stands in, and become code.

    The name of a run may be somebody else's.
    """
    return re.sub(r"[^\w .,:-]", "_", text)


class NumpyFile:
    """The parts of a file: arrays by name, code of the network, and the steps of `policy`."""

    def __init__(self) -> None:
        self.arrays: dict[str, Float32] = {}
        self.network, self.scale = "", ""
        self.vector = "np.asarray(observation, np.float32)"
        self.is_recurrent = False
        self.steps: list[str] = []

    def array(self, name: str, values: Array) -> str:
        """Add an array, or none if all its elements are equal; return how code names it."""
        values = np.asarray(values, np.float32)
        if values.size and (values == values.flat[0]).all() and np.isfinite(values.flat[0]):
            return f"np.float32({float(values.flat[0])!r})"
        self.arrays[name] = values
        return f'P["{name}"]'

    def transform(self, steps: Sequence[Transformation], name: str) -> None:
        """Add the wrappers of observations or actions."""
        for number, step in enumerate(steps):
            if isinstance(step, Affine):
                scale = self.array(f"{name}_scale_{number}", step.scale)
                offset = self.array(f"{name}_offset_{number}", step.offset)
                self.steps.append(f"x = x * {scale} + {offset}")
            elif isinstance(step, Clip):
                low = self.array(f"{name}_low_{number}", step.low)
                high = self.array(f"{name}_high_{number}", step.high)
                self.steps.append(f"x = np.minimum(np.maximum(x, {low}), {high})")
            else:
                self.steps.append(f"x = x.reshape({step.shape!r})")

    def normalise(self, normaliser: Normaliser | None) -> None:
        """Add the normalisation of the observations."""
        if normaliser is None:
            return
        mean, deviation, clip = normaliser
        self.arrays |= {"mean": mean, "std": deviation}
        scaled = '(x - P["mean"]) / P["std"]'
        limited = f"np.clip({scaled}, {-clip!r}, {clip!r})" if np.isfinite(clip) else scaled
        self.steps.append(f"x = {limited}")

    def act(self, head: Head) -> str:
        """Add the action head; return what an action is."""
        space = head.space
        if isinstance(space, Discrete):
            start = f"{space.start} + " if space.start else ""
            self.steps.append(f"x = {start}int(x.argmax())")
            return "an action, int"
        if isinstance(space, MultiDiscrete):
            ends = np.cumsum(space.counts)[:-1].tolist()
            self.steps.append(f"x = np.array([part.argmax() for part in np.split(x, {ends})])")
            return f"an action, int64[{len(space.counts)}],"
        low, high = self.array("low", space.low), self.array("high", space.high)
        if head.bins is not None:
            self.steps.append(f"x = x.reshape(-1, {head.bins}).argmax(axis=1)")
            self.steps.append(f"x = {low} + x / np.float32({head.bins - 1}) * ({high} - {low})")
        elif head.bounds == "squash":
            self.steps.append(f"x = {low} + (np.tanh(x) + 1) / 2 * ({high} - {low})")
        self.steps.append(f"x = np.minimum(np.maximum(x, {low}), {high})")
        return "an action"

    def text(self, title: str, module: str, action: str, observation: str) -> str:
        """Return the text of the file."""
        texts = "\n".join(
            f'    "{name}": ({array.shape!r}, "{array.astype("<f4").tobytes().hex()}"),'
            for name, array in self.arrays.items()
        )
        return FILE.format(
            title=plain_words(title),
            module=plain_words(module),
            more=", reset" if self.is_recurrent else "",
            hint="  # after reset() at the start of each episode" if self.is_recurrent else "",
            texts=texts,
            network=self.network,
            action=action,
            observation=observation,
            scale=self.scale,
            vector=self.vector,
            steps="".join(f"    {line}\n" for line in self.steps),
        )


def add_parts(file: NumpyFile, parts: Sequence[Part]) -> str:
    """Make a vector of the parts of an observation; return what an observation is."""
    lines = []
    for part in parts:
        value = "observation" + "".join(f"[{key!r}]" for key in part.path)
        if isinstance(part.spec, Choices):
            lines.append(f"one_hot({value}, {part.spec.counts!r}, {part.spec.starts!r})")
        else:
            lines.append(f"np.ravel(np.asarray({value}, np.float32))")
    if any(isinstance(part.spec, Choices) for part in parts):
        file.network = ONE_HOT + file.network
    file.vector = "np.concatenate([\n" + "".join(f"        {line},\n" for line in lines) + "    ])"
    return f"with the parts {plain_words(', '.join(part.name for part in parts))}"


def add_mlp(file: NumpyFile, policy: MLP) -> None:
    """Add a feed-forward network."""
    *hidden, _ = policy.layers.names
    bias = ' + P[name + "_bias"]' if policy.options.bias else ""
    is_normalised = policy.options.normalisation == "layer"
    file.network = (LAYER_NORMALISED if is_normalised else "") + DENSE.format(
        activation=ACTIVATIONS[policy.options.activation],
        hidden=tuple(hidden),
        dense=f'x @ P[name + "_kernel"]{bias}',
        normalised="normalised" if is_normalised else "",
    )


def add_lstm(file: NumpyFile, policy: LSTM) -> None:
    """Add a recurrent network."""
    layers = tuple(f"lstm_{number}" for number in range(len(policy.hidden_dims)))
    file.network = RECURRENT.format() + LSTM_LAYERS.format(layers=layers)
    file.is_recurrent = True


def add_cnn(file: NumpyFile, network: Any) -> None:
    """Add a `ConvolutionalNetwork`, whose module would import JAX."""
    file.is_recurrent = network.lstm is not None
    file.network = (RECURRENT.format() if file.is_recurrent else "") + CONVOLUTIONAL.format(
        activation=ACTIVATIONS[network.activation],
        is_same=network.padding == "same",
        is_normalised=network.normalisation == "layer",
        image=network.image,
        strides=tuple(layer.stride for layer in network.convolutions),
        hidden=len(network.hidden_dims),
        convolutions=len(network.convolutions),
        memory='    x = cell(x, "lstm_0")\n' if file.is_recurrent else "",
    )


def numpy_file(
    policy: Policy,
    theta: Float32,
    *,
    normaliser: Normaliser | None,
    around: EnvironmentTransformations | None,
    spaces: Spaces,
    title: str,
    module: str,
) -> str:
    """Return the text of the file. Raises TypeError for a policy of another kind.

    Args:
        policy: of a kind in `export.NETWORK_KINDS`.
        theta: its parameters, float32[params].
        around: the wrappers of the environment.
        spaces: of the network.
        title: first line of the file.
        module: its name without .py.
    """
    file = NumpyFile()
    spec, network = spaces.observations, policy
    if isinstance(policy, VirtualBatchPolicy):
        network, theta = policy.folded(theta)
    if isinstance(network, MLP):
        add_mlp(file, network)
    elif isinstance(network, LSTM):
        add_lstm(file, network)
    elif isinstance(network, ConvolutionalPolicy):
        add_cnn(file, network.network)
        file.scale = " / 255" if spec.is_integer else ""
    else:
        raise TypeError(f"{type(policy).__name__} cannot be written with NumPy alone")
    file.arrays |= network.layout.split(theta)
    if around is not None:
        file.transform(around.observations, "observation")
    file.normalise(normaliser)
    file.steps.append("x = network(x)")
    action = file.act(network.head)
    if around is not None:
        file.transform(around.actions, "action")
    file.steps.append("return x")
    shape = around.shape if around is not None else spec.shape
    observation = f"[{', '.join(map(str, shape))}]"
    if around is None and (parts := parts_of(spec)):
        observation = add_parts(file, parts)
    return file.text(title, module, action, observation)
