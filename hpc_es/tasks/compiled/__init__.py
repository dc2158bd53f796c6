"""What Numba compiles; in a folder of its own, so that looking for tasks does not import Numba."""
