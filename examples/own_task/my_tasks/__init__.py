"""A package of custom tasks."""
