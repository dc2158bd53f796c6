"""Tasks of one's own."""
