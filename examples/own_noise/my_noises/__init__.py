"""Noises of one's own."""
