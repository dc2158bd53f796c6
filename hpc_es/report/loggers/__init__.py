"""Packages that users watch their runs with, one file each: a copy of every row of metrics.jsonl for each of them."""
