"""Algorithms: one file or folder per kind, and what several of them share in `common/`."""
