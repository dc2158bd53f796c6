"""The peers beside hpc_es in one run: env-steps/s that count, start-up and memory on the same work.

Each peer has a virtual environment of its own, made here, and a program of its own as its documentation has it. All
have two processes (or threads), the same environment, network and population, and take turns. Steps after an episode's
first end are not counted, as nothing is learned from them.
"""
