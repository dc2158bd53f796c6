"""Benchmarks: `make bench`, or `python -m benchmarks [NAME ...]`. Ratios within one run, repeated, medians reported."""
