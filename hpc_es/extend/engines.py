"""Engines for `task: {kind: model, call: each}`: modules of PyTorch, and models of Hugging Face.

    from hpc_es.extend.engines import TorchEngine

    def make():
        return TorchEngine(my_module(), score, batch)

Importing this module imports neither library; making an engine does.
"""

from __future__ import annotations

from hpc_es.tasks.model.torch_engines import HuggingFaceEngine, TorchEngine, directory_sha256

__all__ = ["HuggingFaceEngine", "TorchEngine", "directory_sha256"]
