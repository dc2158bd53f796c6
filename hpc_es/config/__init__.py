"""Configs: options and their kinds, reading, validation, and the table of keys."""
