"""What runs have trained, read back: parameters, policies and models."""
