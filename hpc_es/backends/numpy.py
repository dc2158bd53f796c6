"""NumPy, which computes on the CPU. Policies and tasks call it themselves."""

from __future__ import annotations

from hpc_es.devices.backend import Backend


class NumPy(Backend):
    """NumPy."""

    name = package = "numpy"
    title = "NumPy"
    has_device = False
    compiles = False


BACKEND = NumPy()
