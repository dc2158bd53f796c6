"""Devices: GPUs of ranks, the decision of a job, and the setup of TensorFlow and JAX."""
