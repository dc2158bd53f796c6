"""Networks of policies: layers, heads, and their TensorFlow and Keras versions."""
