"""What a run will cost on so many ranks, before it is in the queue: measured here, simulated there."""
