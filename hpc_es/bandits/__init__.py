"""Bandits for meta-learning: the task, exact optima, reference agents and the regret report."""
