"""Noise: standard normal perturbations, from counters or from a table."""
