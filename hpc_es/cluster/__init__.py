"""Batch scripts, requeueing and the prediction of how a run scales."""
