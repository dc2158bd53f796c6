"""`task: {kind: episodes}`: episodes of a Gymnasium environment."""
