"""Devices: assignment of GPUs to ranks, and the setup of TensorFlow and JAX before they use one."""
