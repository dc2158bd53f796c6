"""A program a peer, each run by the Python of its own virtual environment."""
