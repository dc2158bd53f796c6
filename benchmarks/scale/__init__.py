"""How hpc_es scales: measured here on up to 128 ranks, and simulated beyond, side by side.

The environment is a timer: an episode sleeps as long as it would last, so that ranks do not compete for this machine's
cores. Its episodes have the lengths of Humanoid's. The simulation is that of `hpc-es plan`, fed with what a rank took.
"""
