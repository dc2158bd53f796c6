"""Objectives of the tasks `function` and `command`: options, evaluators and journal;
custom tasks may use them.
"""
