"""Gymnasium's classic control without Gymnasium's overhead: a chunk's environments as arrays, to the same bits."""
