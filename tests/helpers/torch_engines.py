"""Engines of PyTorch, as a user writes them.

model: tests.helpers.torch_engines:network
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hpc_es.extend.engines import HuggingFaceEngine, TorchEngine


class Network(nn.Module):
    """Tied weights, a buffer, a frozen layer and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 2).requires_grad_(False)
        self.register_buffer("shift", torch.ones(4))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.frozen(self.dropout(self.second(torch.tanh(self.first(x + self.shift)))))


def batch(seed: int) -> Any:
    x = np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)
    return torch.from_numpy(x), torch.ones(8, 2)


def score(module: Any, batch: Any) -> Any:
    x, y = batch
    weights = next(module.parameters())
    return -((module(x.to(weights.dtype)).float() - y) ** 2).mean(), {"rows": float(len(x))}


def network(dtype: str = "float32") -> TorchEngine:
    return TorchEngine(Network().to(getattr(torch, dtype)), score, batch)


def dropping(dtype: str = "float32") -> TorchEngine:
    """Its score is random, since it calls the module in training."""

    def score_in_training(module: Any, batch: Any) -> Any:
        module.train()
        return score(module, batch)

    return TorchEngine(Network(), score_in_training, batch)


def vector() -> TorchEngine:
    return TorchEngine(Network(), lambda module, batch: module(batch[0]), batch)


def frozen() -> TorchEngine:
    return TorchEngine(Network().requires_grad_(False), score, batch)


def language(directory: str, sha256: str | None = None, dtype: str = "bfloat16") -> Any:
    """A model of Hugging Face that is rewarded for even tokens."""

    def tokens(seed: int) -> Any:
        prompts = np.random.default_rng(seed).integers(1, 64, (3, 4)).tolist()
        return {"prompts": prompts, "seed": seed}

    def reward(engine: Any, batch: Any) -> Any:
        answers = engine.generate(batch["prompts"], 2, seed=batch["seed"], max_new_tokens=5)
        written = [token for group in answers for answer in group for token in answer]
        return sum(token % 2 == 0 for token in written) / len(written)

    return HuggingFaceEngine(
        directory,
        reward,
        tokens,
        dtype=dtype,
        sha256=sha256,  # type: ignore[arg-type]
    )


def parts(what: str) -> Any:
    """What a compiled call takes from JAX, made of PyTorch: its parameters are a module or a
    state_dict.
    """
    module = Network()
    parameters = module if what == "module" else module.state_dict()
    return {"parameters": parameters, "score": score, "batch": batch}


def traced() -> TorchEngine:
    """The module as a program of TorchScript."""
    module = Network().eval()
    return TorchEngine(torch.jit.trace(module, batch(0)[0]), score, batch)
