"""Compare hpc_es with similar packages: steps per second, start-up time and memory on the same
tasks.

Each package has its own virtual environment, which is created here, and a program that follows its
documentation. All use two processes or threads and the same environment, network and population;
their runs alternate. Steps after the first end of an episode do not count, because nothing is
learned from them.
"""
