"""A custom network in Keras."""

import keras


def build(observations, outputs):
    """Return a model with a hidden layer and layer normalisation."""
    inputs = keras.layers.Input(observations.shape)
    hidden = keras.layers.Dense(32, activation="gelu")
    return keras.Sequential(
        [inputs, hidden, keras.layers.LayerNormalization(), keras.layers.Dense(outputs)]
    )
