"""What a config of a Keras model may name, which Keras would make while it loads the model.

Some layers run code or read files that the config names, such as Lambda, TFSMLayer (a saved graph)
and StringLookup. The versions of Keras differ in which of them they refuse, so all are refused here
but those that are known to compute only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

MOST_LAYERS = 1_000  # and operations, which take Keras up to 20 ms each, and parts of a split array
MOST_LEVELS = 200  # of dicts and lists
MOST_BITS = 26  # of the number of elements of a shape
LONGEST = 100  # letters of a name in a message
# Classes of Keras that compute and have neither code nor files of their own, by module.
LAYERS = frozenset(
    """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D
    AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add
    AdditiveAttention AlphaDropout Attention Average AveragePooling1D AveragePooling2D
    AveragePooling3D BatchNormalization Bidirectional CenterCrop Concatenate Conv1D
    Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D
    ConvLSTM3D Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D
    Discretization Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell GaussianDropout
    GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization
    GroupQueryAttention Identity InputLayer LSTM LSTMCell LayerNormalization LeakyReLU Masking
    MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum MultiHeadAttention Multiply
    Normalization PReLU Permute RMSNormalization RNN ReLU RepeatVector Rescaling Reshape
    Resizing ReversibleEmbedding SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax
    SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells
    Subtract TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """.split()  # noqa: SIM905
)
MODELS = frozenset({"Functional", "Model", "Sequential"})
POLICIES = frozenset(
    {"DTypePolicy", "DTypePolicyMap", "FloatDTypePolicy", "Policy", "QuantizedDTypePolicy"}
)
INITIALIZERS = frozenset(
    """
    Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones
    Orthogonal OrthogonalInitializer RandomNormal RandomUniform TruncatedNormal VarianceScaling
    Zeros
    """.split()  # noqa: SIM905
)
KNOWN = {
    "keras": LAYERS | MODELS | POLICIES,
    "keras.layers": LAYERS,
    "keras.models": MODELS,
    "keras.src.models.functional": MODELS,
    "keras.src.models.sequential": MODELS,
    "keras.dtype_policies": POLICIES,
    "keras.initializers": INITIALIZERS,
    "keras.regularizers": frozenset({"L1", "L2", "L1L2", "OrthogonalRegularizer"}),
    "keras.constraints": frozenset({"MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"}),
    "keras.random": frozenset({"SeedGenerator"}),
    "keras.src.random.seed_generator": frozenset({"SeedGenerator"}),
    "keras.src.ops.core": frozenset({"Cast", "Shape", "Slice", "StopGradient", "Unstack"}),
}
# arrays in the config itself, and other values
VALUES = frozenset({"__numpy__", "__tensor__"})
SYMBOLS = frozenset({"__ellipsis__", "__keras_tensor__", "__slice__", "__tuple__"})
OPERATIONS = frozenset(f"keras.src.ops.{name}" for name in ("linalg", "math", "nn", "numpy"))
PARTS = ("indices_or_sections", "num")  # numbers of results
DTYPES = (
    *("bool", "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


class _Part(NamedTuple):
    """A dict or list of a config."""

    value: dict[str, Any] | list[Any]
    above: int  # position of the one that it is in; -1: none
    level: int = 0
    in_shape: bool = False
    in_array: bool = False
    role: str = ""  # "calls" of a layer, or a "call" in that list

    @property
    def entries(self) -> dict[str, Any] | None:
        """The entries of an object, which has a class; None if it is none."""
        is_object = isinstance(self.value, dict) and "class_name" in self.value
        return self.value if is_object and not self.in_array else None  # type: ignore[return-value]

    def within(self, position: int) -> Iterator[_Part]:
        """Yield what is directly within this part, which has this position."""
        is_array = self.entries is not None and self.entries["class_name"] in VALUES
        for name, item in _items(self.value):
            if isinstance(item, dict | list):
                role = ""
                if self.role == "calls" and isinstance(item, dict):
                    role = "call"
                elif self.entries is not None and name == "inbound_nodes":
                    role = "calls"
                yield _Part(
                    item,
                    position,
                    self.level + 1,
                    self.in_shape or "shape" in name,
                    self.in_array or is_array,
                    role,
                )


def _items(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, dict) else (("", item) for item in value)


def require_known(config: object) -> None:
    """Raise ValueError for an object that is none of the known ones of Keras, or that would need
    much memory or time to be made.
    """
    layers, parts = 0, list[_Part]()
    waiting = [_Part(config, -1)] if isinstance(config, dict | list) else []
    while waiting:  # each part once, however they are nested
        part = waiting.pop()
        if part.level > MOST_LEVELS:
            raise ValueError("its config is nested too deep")
        if part.entries is not None:
            layers += _required_class(part.entries)
            if layers > MOST_LAYERS:
                raise ValueError(f"it has more than {MOST_LAYERS:,} layers, operations and parts")
        if isinstance(part.value, dict):
            if name := next(filter(part.value.get, ("stateful", "unroll")), ""):
                raise ValueError(f"it has a recurrent layer with {name}: true, expected false")
        elif part.in_shape:
            _require_small(part.value)
        waiting += part.within(len(parts))
        parts.append(part)
    _require_symbolic_calls(parts)


def _require_symbolic_calls(parts: Sequence[_Part]) -> None:
    """Raise ValueError for a call without symbolic arguments, which Keras computes at once."""
    has_symbol = [part.entries is not None and _is_symbolic(part.entries) for part in parts]
    for position in reversed(range(len(parts))):  # what is within a part comes after it
        if has_symbol[position] and parts[position].above >= 0:
            has_symbol[parts[position].above] = True
    if any(part.role == "call" and not has for part, has in zip(parts, has_symbol, strict=True)):
        raise ValueError("it has a call without inputs of the model")


def _required_class(entries: dict[str, Any]) -> int:
    """Return how many layers, operations and parts an object is; ValueError if it is unknown."""
    _require_class(entries)
    if entries["class_name"] in VALUES:
        _require_numbers(entries.get("config"))
    is_layer = entries["class_name"] in LAYERS or entries.get("module") in OPERATIONS
    return is_layer + sum(_parts(entries.get("config")))


def _parts(options: object) -> Iterator[int]:
    """Yield the numbers of parts into which an operation divides an array."""
    if isinstance(options, dict):
        counts = (options.get(name) for name in PARTS)
        yield from (abs(count) for count in counts if type(count) is int)


def _require_class(entries: dict[str, Any]) -> None:
    """Raise ValueError unless an object is of a known class."""
    module, name = entries.get("module"), entries["class_name"]
    if not (isinstance(name, str) and isinstance(module, str | None)):
        raise ValueError("it has an object whose class is no text")
    names = [KNOWN[module]] if module in KNOWN else []
    if module is None:  # formats before Keras 3 name no modules
        names = [*KNOWN.values(), VALUES, SYMBOLS]
    is_known = any(name in of_module for of_module in names)
    is_operation = module in OPERATIONS and name[:1].isupper()
    registered = entries.get("registered_name")
    if not (is_known or is_operation) or (registered is not None and registered != name):
        raise ValueError(
            f"it has {name[:LONGEST]!r} of {(module or 'an unknown module')[:LONGEST]}, expected "
            "layers of Keras that compute, without code or files of their own: build the model in "
            "a function, and load its weights there"
        )


def _require_numbers(array: object) -> None:
    """Raise ValueError unless an array of the config has numbers."""
    if not isinstance(array, dict) or array.get("dtype") not in DTYPES:
        raise ValueError(f"it has an array of other types than {', '.join(DTYPES)}")


def _require_small(shape: list[Any]) -> None:
    """Raise ValueError for a shape of more elements than any input has."""
    sizes = [abs(size) for size in shape if type(size) is int and size]
    if sum(map(int.bit_length, sizes)) > MOST_BITS + len(sizes):
        raise ValueError("it has a shape of too many elements")


def _is_symbolic(entries: dict[str, Any]) -> bool:
    return bool(entries["class_name"] == "__keras_tensor__")
