"""Files of a run: checkpoints, metrics, results, status, locks; only here h5py is imported."""
