"""Benchmarks: `make bench`, or `python -m benchmarks [NAME ...]`.

Most report medians of ratios measured in one run.
"""
