"""Searching hyperparameters: a table of trials, each of them an experiment,
shared by the tasks of a job array.
"""
