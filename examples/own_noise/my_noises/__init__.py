"""A package of custom noises."""
