"""The libraries that compute policies and tasks, one file each: see `devices/backend.py`."""
