"""What a config of a Keras model may name, which Keras would make while it loads the model.

Some layers run code or read files that the config names, such as Lambda, TFSMLayer (a saved graph)
and StringLookup. The versions of Keras differ in which of them they refuse, so all are refused here
but those that are known to compute only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_OBJECTS = 20_000  # of a config: layers, initializers and the like
# Classes of Keras that compute and have neither code nor files of their own, by module.
LAYERS = frozenset(
    """
    Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average
    AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional Concatenate
    Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D
    ConvLSTM3D Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout
    ELU EinsumDense Embedding Flatten GRU GRUCell GaussianDropout GaussianNoise
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D
    GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity InputLayer
    LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum
    Minimum MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN ReLU
    RepeatVector Rescaling Reshape SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax
    SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells
    Subtract TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D
    ZeroPadding2D ZeroPadding3D
    """.split()  # noqa: SIM905
)
MODELS = frozenset({"Functional", "Model", "Sequential"})
POLICIES = frozenset({"DTypePolicy", "DTypePolicyMap", "FloatDTypePolicy", "Policy"})
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
    # values of the config itself
    None: frozenset({"__keras_tensor__", "__numpy__", "__tensor__", "__tuple__", "__slice__"}),
}
OPERATIONS = frozenset({"keras.src.ops.numpy", "keras.src.ops.nn", "keras.src.ops.math"})


def require_known(config: object) -> None:
    """Raise ValueError for an object that is none of the known ones of Keras."""
    for number, (module, name, registered) in enumerate(_objects(config)):
        if number >= MOST_OBJECTS:
            raise ValueError(f"it has more than {MOST_OBJECTS:,} layers and other objects")
        if not (isinstance(name, str) and isinstance(module, str | None)):
            raise ValueError("it has an object whose class is no text")
        names = [KNOWN[module]] if module in KNOWN else []
        if module is None:  # formats before Keras 3 name no modules
            names = [*KNOWN.values()]
        is_known = any(name in of_module for of_module in names)
        is_operation = module in OPERATIONS and name[:1].isupper()
        if not (is_known or is_operation) or registered not in (None, name):
            raise ValueError(
                f"it has {name!r} of {module or 'an unknown module'}, expected layers of Keras that "
                "compute, without code or files of their own: build the model in a function, and "
                "load its weights there"
            )


def uncompiled(value: object) -> Any:
    """Return a config without optimisers, losses and metrics, also of models in models."""
    if isinstance(value, dict):
        return {name: uncompiled(item) for name, item in value.items() if name != "compile_config"}
    return [uncompiled(item) for item in value] if isinstance(value, list) else value


def _objects(value: object) -> Iterator[tuple[object, object, object]]:
    """Yield module, class and registered name of all objects in a config."""
    if isinstance(value, dict):
        if "class_name" in value:
            yield value.get("module"), value["class_name"], value.get("registered_name")
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)
