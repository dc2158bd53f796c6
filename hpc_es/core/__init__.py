"""Contracts, data types, random numbers and errors; imports no other part of hpc_es."""
