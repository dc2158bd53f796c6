"""Searching hyperparameters: a table of trials, each of them an experiment.

The tasks of a job array share it.
"""
