"""What several tests use: jobs and their output, environments and functions with known results, trained runs."""
