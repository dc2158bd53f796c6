"""`task: {kind: bandits}`: bandits of meta-learning. Importing this registers the environment hpc_es/Bandit-v0."""

from hpc_es.tasks.bandits.task import OFFERS, Bandits, Options, build, optimal_regret, optimal_reward

__all__ = ["OFFERS", "Bandits", "Options", "build", "optimal_regret", "optimal_reward"]
