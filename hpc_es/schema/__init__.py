"""The machinery of configs: YAML, type hints in words, validation, the table of keys. It knows no key by name."""
