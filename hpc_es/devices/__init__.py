"""Devices: the assignment of GPUs to ranks, the decision of a job,
and the setup of TensorFlow and JAX.
"""
