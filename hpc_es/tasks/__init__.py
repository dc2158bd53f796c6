"""Tasks: environments, Atari games, functions, external programs and models,
and the problems that they make.
"""
