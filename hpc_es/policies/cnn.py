"""`policy: {kind: cnn}`: a convolutional network for images, computed by JAX.

Convolutions and dense layers, each with its activation, then an optional LSTM layer and a linear
output layer. The parameter vector and the normalisations are described in
`networks/jax_convolutional.py`. Images are [height, width] or [height, width, channels]; integers
are divided by 255.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from hpc_es.config.options import Count, Limits, Together, option, options, unused
from hpc_es.core.data import Array, Float32, Normaliser, ObservationSpec, Spaces, parts_of
from hpc_es.core.declarations import Computes
from hpc_es.core.errors import ConfigError
from hpc_es.core.policy import Actor
from hpc_es.core.population import Explicit, Layout, Population
from hpc_es.policies.network import NetworkPolicy
from hpc_es.policies.networks.backend import set_up
from hpc_es.policies.networks.feed_forward import PolicyOptions
from hpc_es.policies.networks.heads import ActionHead, Head
from hpc_es.policies.networks.layers import Activation

if TYPE_CHECKING:
    from hpc_es.policies.networks.jax_convolutional import ConvolutionalNetwork


@options
class Convolution:
    """A convolution with a square kernel."""

    filters: Count = option("number of filters")
    kernel: Count = option("height and width of the kernel in pixels")
    stride: Count = option("step from one position of the kernel to the next in pixels", 1)


def _convolutions(*sizes: tuple[int, int, int]) -> tuple[Convolution, ...]:
    return tuple(
        Convolution(filters=filters, kernel=kernel, stride=stride)
        for filters, kernel, stride in sizes
    )


DEFAULTS: Mapping[str, Any] = {
    "padding": "same",
    "hidden_dims": (),
    "lstm": None,
    "activation": "relu",
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # of Atari games in Salimans et al. 2017 and Such et al. 2017, which normalise by virtual
    # batches
    "atari": {
        **DEFAULTS,
        "convolutions": _convolutions((16, 8, 4), (32, 4, 2)),
        "hidden_dims": (256,),
    },
    # Young and Tian 2019
    "minatar": {
        **DEFAULTS,
        "convolutions": _convolutions((16, 3, 1)),
        "padding": "valid",
        "hidden_dims": (128,),
    },
    # OpenAI's universe-starter-agent, after Mnih et al. 2016
    "a3c": {
        **DEFAULTS,
        "convolutions": _convolutions(*[(32, 3, 2)] * 4),
        "lstm": 256,
        "activation": "elu",
    },
}
OF_PRESET = "null: that of the preset"


@options
class Options(PolicyOptions):
    """`policy:` with `kind: cnn`."""

    kind: Literal["cnn"] = option("name of the policy", "cnn")
    preset: Literal["atari", "minatar", "a3c"] | None = option(
        "layers of a published network, which the keys below change; null: convolutions are required",
        None,
    )
    convolutions: tuple[Convolution, ...] | None = option(
        f"convolutions from the image on; {OF_PRESET}", None
    )
    padding: Literal["same", "valid"] | None = option(
        "same: images are padded with zeros, so that only the stride reduces their size; valid: no padding; "
        f"{OF_PRESET} (same)",
        None,
    )
    hidden_dims: tuple[Count, ...] | None = option(
        f"number of units of each dense layer after the convolutions; {OF_PRESET} ([])", None
    )
    lstm: Count | None = option(
        f"number of units of an LSTM layer after the dense layers; {OF_PRESET} (no layer)", None
    )
    activation: Activation | None = option(
        f"activation function of convolutions and dense layers; {OF_PRESET} (relu)", None
    )
    normalisation: Literal["none", "layer", "virtual_batch"] = option(
        "normalisation before the activation: over the units of a layer, or of each unit by its mean and variance over "
        "observations of random play",
        "none",
    )
    reference_frames: Annotated[int, Limits(ge=1, le=10_000)] = option(
        "number of observations of random play for virtual_batch", 128
    )
    backend: Literal["jax"] = option("library that computes the network", "jax")
    candidates_per_call: Together = option(
        "number of candidates that are computed together; results depend on it, not on chunks or ranks",
        16,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if there are no layers."""
        if self.preset is None and self.convolutions is None:
            yield (
                "convolutions",
                "is null: expected a list such as [{filters: 16, kernel: 3}], or policy.preset "
                f"({', '.join(PRESETS)})",
            )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for each option that has no effect."""
        yield from super().warnings()
        if self.normalisation != "virtual_batch":
            yield from unused(self, ("reference_frames",), f"normalisation is {self.normalisation}")

    @property
    def layers(self) -> Mapping[str, Any]:
        """The layers: convolutions, padding, hidden_dims, lstm and activation."""
        of_preset = (
            {"convolutions": (), **DEFAULTS} if self.preset is None else PRESETS[self.preset]
        )
        own = {name: getattr(self, name) for name in of_preset}
        return {name: of_preset[name] if value is None else value for name, value in own.items()}


class ConvolutionalPolicy(NetworkPolicy):
    """A convolutional network without virtual batch normalisation, and an action head."""

    def __init__(
        self, options: Options, spaces: Spaces, network: ConvolutionalNetwork, head: Head
    ) -> None:
        super().__init__(options, spaces, network, head)
        self.scales_observations = spaces.observations.is_integer


class VirtualBatchPolicy:
    """A policy normalised by observations of random play; see `core.policy.ReferencePolicy`."""

    rows_are_independent = True
    scales_observations = True

    def __init__(
        self, policy: NetworkPolicy, network: ConvolutionalNetwork, options: Options
    ) -> None:
        """`policy` acts with parameters into which the normalisation is folded."""
        self._policy, self._network, self._options = policy, network, options
        self.layout: Layout = network.layout
        self.head, self.action_noise_std = policy.head, policy.action_noise_std
        self.reference_frames = options.reference_frames
        self.candidates_per_call, self.compiled_by = options.candidates_per_call, policy.compiled_by
        self._fold: Any = None

    def with_reference(self, observations: Array) -> VirtualBatchPolicy:
        from hpc_es.policies.networks.jax_convolutional import Folding

        policy = VirtualBatchPolicy(self._policy, self._network, self._options)
        policy._fold = Folding(self._network, observations)
        return policy

    def initial(self, rng: np.random.Generator) -> Float32:
        return self._network.initial(rng)

    def folded(self, theta: Float32) -> tuple[NetworkPolicy, Float32]:
        """Return the policy without normalisation that acts as this one with parameters
        float32[params], and its parameters.
        """
        folded: Float32 = self._fold(theta[np.newaxis])[0]
        return self._policy, folded

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(
        self, head: ActionHead, parameters: Population, normaliser: Normaliser | None
    ) -> Actor:
        """Return an actor with another head, such as one that samples actions."""
        assert self._fold is not None and normaliser is None, (
            "with_reference comes first, and there are no statistics"
        )
        folded = Explicit(self._policy.layout, self._fold(parameters.stacked()))
        return self._policy.bind_with(head, folded, None)


def computes(options: Options) -> Computes:
    """Return how a policy of this kind computes."""
    own = ("candidates_per_call",)
    return Computes(backend=options.backend, backends=("jax",), any_chunks=True, own_calls=own)


def build(options: Options, spaces: Spaces) -> NetworkPolicy | VirtualBatchPolicy:
    """Return the policy; ConfigError if observations are not images, or smaller than a kernel."""
    head = Head.of(spaces.actions, options.action_bins, options.action_bounds)
    image = _image(spaces.observations)
    set_up(options.backend)
    from hpc_es.policies.networks import jax_convolutional

    layers = options.layers
    sizes = (
        jax_convolutional.Convolution(o.filters, o.kernel, o.stride) for o in layers["convolutions"]
    )
    network = jax_convolutional.ConvolutionalNetwork(
        image,
        **{**layers, "convolutions": tuple(sizes)},
        normalisation=options.normalisation,
        outputs=head.outputs,
    )
    _require_small_kernels(network, None if options.convolutions else options.preset)
    if options.normalisation == "virtual_batch":
        return VirtualBatchPolicy(
            ConvolutionalPolicy(options, spaces, network.folded, head), network, options
        )
    return ConvolutionalPolicy(options, spaces, network, head)


def _image(observations: ObservationSpec) -> tuple[int, int, int]:
    """Return height, width and number of channels; ConfigError if observations are not images."""
    shape = observations.shape
    if len(shape) not in (2, 3):
        text = f"is 'cnn', which takes images [height, width] or [height, width, channels], found {observations}"
        text += " observations" if observations.is_flat else ""
        if parts_of(observations):
            raise ConfigError(
                [
                    (
                        "policy.kind",
                        f"{text}: use the policy network, which gets all parts, or a "
                        "gymnasium.ObservationWrapper of your own in "
                        "task.wrappers that returns the image",
                    )
                ]
            )
        raise ConfigError(
            [
                (
                    "policy.kind",
                    f"{text}: use mlp or lstm for other observations; compiled images need "
                    "task.flatten_observations: false",
                )
            ]
        )
    return shape[0], shape[1], (*shape, 1)[2]


def _require_small_kernels(network: ConvolutionalNetwork, preset: str | None) -> None:
    """Raise ConfigError if a kernel is larger than its input."""
    for number, (size, layer) in enumerate(
        zip(network.sizes(), network.convolutions, strict=False)
    ):
        height, width, _ = size
        if layer.kernel > min(height, width):
            inputs = (
                f"outputs of convolution {number - 1}"
                if number
                else "images [height, width, channels]"
            )
            text = f"has kernels of {layer.kernel} x {layer.kernel}, but its inputs, {inputs}, are {height} x {width}"
            remedy = (
                f"set policy.convolutions in place of those of preset {preset}"
                if preset
                else "expected smaller ones"
            )
            raise ConfigError([(f"policy.convolutions[{number}]", f"{text}: {remedy}")])
