"""The tasks `function` and `command`, and what they share: options, evaluators and journal.

Custom tasks may use them.
"""
