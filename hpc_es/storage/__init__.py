"""Files of a run: checkpoints, metrics, results, status and locks;
the only package that imports h5py.
"""
