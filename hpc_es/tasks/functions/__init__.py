"""Objectives of the tasks `function` and `command`: options, evaluators and journal.

Custom tasks may use them.
"""
