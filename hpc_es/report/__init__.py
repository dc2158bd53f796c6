"""Reports of a run: progress, learning curves, loggers, and trained policies to export."""
