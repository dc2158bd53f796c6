"""Configs: sections, kinds, validation, and the texts they come from."""
