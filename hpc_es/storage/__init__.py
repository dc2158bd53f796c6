"""What is kept on disk: checkpoints, metrics, results, locks."""
