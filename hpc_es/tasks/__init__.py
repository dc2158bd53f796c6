"""Tasks: environments, games, functions, programs and models, and the problems they make."""
