"""Scaling of hpc_es: measured on up to 128 ranks of this machine, and simulated for clusters.

The environment is a timer whose steps sleep, so that ranks do not compete for the cores of this
machine; its episodes have the lengths of Humanoid episodes. The simulation is that of `hpc-es
plan`, with the costs measured on one rank.
"""
