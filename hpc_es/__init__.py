"""hpc_es: evolution strategies on clusters."""

__version__ = "0.1.0"
