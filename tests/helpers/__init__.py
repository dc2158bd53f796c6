"""Helpers of several tests: jobs and their output,
environments and functions with known results, trained runs.
"""
