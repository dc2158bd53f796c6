"""The public path of the bandit environment:
`gymnasium.make("hpc_es.tasks.bandits:hpc_es/Bandit-v0")`.
"""

from hpc_es.bandits.task import optimal_regret, optimal_reward

__all__ = ["optimal_regret", "optimal_reward"]
