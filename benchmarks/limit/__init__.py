"""How much of the speed of a bare loop a whole job reaches: `python -m benchmarks.limit`."""
