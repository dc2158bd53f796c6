"""Objects with the types of PyTorch, which the tests do not install."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np


class Tensor:
    """Has the attributes of an array, with a dtype and a shape of PyTorch's types."""

    dtype, shape = "torch.float32", (3, 2)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.zeros(self.shape, np.float32)


class Linear:
    def __call__(self, x: Any) -> Any:
        raise TypeError("linear(): argument 'input' must be Tensor")

    def forward(self, x: Any) -> Any:
        return self(x)

    def state_dict(self) -> Any:
        return OrderedDict(weight=Tensor())


Tensor.__module__, Linear.__module__ = "torch", "torch.nn.modules.linear"
