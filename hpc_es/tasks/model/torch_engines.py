"""Modules of PyTorch and models of Hugging Face as engines of `task: {kind: model, call: each}`.

    from hpc_es.extend.engines import TorchEngine

    def make():
        return TorchEngine(my_module(), score, batch)

Importing this module imports neither; making an engine does.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpc_es.core.data import Array, Float32
from hpc_es.core.errors import ConfigError, visible, visible_lines
from hpc_es.tasks.model.hugging_face_files import KEY, directory_sha256, local_model

__all__ = ["HuggingFaceEngine", "TorchEngine", "directory_sha256"]


class _Weight:
    """A tensor as an engine returns it: floats of any width become float32."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype: str = str(tensor.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        tensor = self._tensor.detach().cpu()
        array: Array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array if dtype is None else array.astype(dtype, copy=False)


class TorchEngine:
    """A `torch.nn.Module` whose weights are searched, with a score in Python.

    Parameters with `requires_grad` are searched, in the dtype that they have; others and buffers
    are constants. The module is in inference mode: dropout has no effect. PyTorch is set to its
    deterministic algorithms, without TF32, and to `threads` threads, on which results depend.

    Args:
        module: with its base weights.
        score: `score(module, batch)`: the fitness, higher is better, or a pair of it and a dict of
            numbers. It is called without gradients. Random numbers come from a seed in the batch,
            such as by `torch.Generator().manual_seed(seed)`.
        batch: `batch(seed)`: any object that follows from the seed.
        validation: `validation(seed)` or `validation()`, the batches of evaluations; None: those of
            `batch`, with other seeds.
        device: where the module computes, such as "cuda".
        threads: of PyTorch on a CPU.

    Raises:
        ConfigError: it is no module, or nothing is searched.

    Examples:
        >>> import torch  # doctest: +SKIP
        >>> module = torch.nn.Linear(2, 1)  # doctest: +SKIP
        >>> def score(module, batch):
        ...     x, y = batch
        ...     return -((module(x) - y) ** 2).mean()
        >>> engine = TorchEngine(module, score, batch=lambda seed: ...)  # doctest: +SKIP
        >>> list(engine.parameters())  # doctest: +SKIP
        ['weight', 'bias']
    """

    def __init__(
        self,
        module: Any,
        score: Callable[[Any, Any], Any],
        batch: Callable[[int], Any],
        *,
        validation: Callable[..., Any] | None = None,
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        torch = _library("torch")

        if not isinstance(module, torch.nn.Module):
            raise ConfigError(
                [
                    (
                        KEY,
                        f"TorchEngine: expected a torch.nn.Module, found {type(module).__name__}: pass "
                        "the model itself",
                    )
                ]
            )
        set_up_torch(threads)
        self.module = module.to(device).eval()
        self._torch = torch
        self._score, self.batch = score, batch
        if validation is not None:
            self.validation = validation
        named = dict(module.named_parameters())
        self._searched = {name: weight for name, weight in named.items() if weight.requires_grad}
        self._constants = {
            **{name: weight for name, weight in named.items() if not weight.requires_grad},
            **dict(module.named_buffers()),
        }
        if not self._searched:
            raise ConfigError(
                [
                    (
                        KEY,
                        "TorchEngine: expected parameters with requires_grad in "
                        f"{type(module).__name__}, found none: call requires_grad_(True) on them",
                    )
                ]
            )

    def parameters(self) -> Mapping[str, Any]:
        """Return the weights that are searched, by name; their arrays are float32."""
        return {name: _Weight(weight) for name, weight in self._searched.items()}

    def constants(self) -> Mapping[str, Any]:
        """Return the weights and buffers that are not searched, by name."""
        return {name: _Weight(weight) for name, weight in self._constants.items()}

    def load(self, name: str, array: Float32) -> None:
        """Copy a weight, which is rounded once to the dtype of the module."""
        with self._torch.no_grad():
            self._searched[name].copy_(self._torch.from_numpy(np.require(array, None, "W")))

    def score(self, batch: Any) -> Any:
        """Return the score of the loaded weights, computed without gradients."""
        with self._torch.no_grad():
            return self._score(self._scored, batch)

    @property
    def _scored(self) -> Any:
        """The first argument of the user's score."""
        return self.module


class HuggingFaceEngine(TorchEngine):
    """A model of Hugging Face in a local directory, with a reward in Python on what it writes.

    Nothing is downloaded, and no code of the directory is executed: the weights have to be
    safetensors.

    Args:
        directory: has config.json, the weights, and, for `generate` with texts, the tokenizer.
        score: `score(engine, batch)`: the fitness, or a pair of it and a dict of numbers; it uses
            the attributes `module` and `tokenizer`, and `generate`.
        batch: `batch(seed)`, such as a list of prompts and the seed.
        validation: as for `TorchEngine`.
        dtype: of the weights in the engine, "float32" or "bfloat16".
        device: where the model computes.
        threads: of PyTorch on a CPU.
        sha256: expected `directory_sha256`; None: not compared.
        model_class: name of a class of `transformers`.

    Raises:
        ConfigError: the directory has no such model, another digest, or names files of elsewhere.

    Examples:
        >>> def score(engine, batch):
        ...     texts = engine.generate(batch["prompts"], samples=4, seed=batch["seed"])
        ...     return sum(reward(text) for group in texts for text in group)
        >>> HuggingFaceEngine("/models/tiny", score, batch=lambda seed: ...)  # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str | Path,
        score: Callable[[Any, Any], Any],
        batch: Callable[[int], Any],
        *,
        validation: Callable[..., Any] | None = None,
        dtype: Literal["float32", "bfloat16"] = "bfloat16",
        device: str = "cpu",
        threads: int = 1,
        sha256: str | None = None,
        model_class: str = "AutoModelForCausalLM",
    ) -> None:
        torch, transformers = _library("torch"), _library("transformers")
        directory = Path(directory)
        self.tokenizer: Any = None
        own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with local_model(directory) as local, _visible_messages("transformers"):
            if sha256 is not None and local.sha256 != sha256:
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"expected base weights with SHA-256 {sha256} in {directory}, found "
                            f"{local.sha256}: restore the files, or name the new digest",
                        )
                    ]
                )
            try:
                model = getattr(transformers, model_class).from_pretrained(
                    local.path, dtype=getattr(torch, dtype), use_safetensors=True, **own
                )
                if (local.path / "tokenizer_config.json").is_file():
                    self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                        local.path, padding_side="left", **own
                    )
                    self.tokenizer.name_or_path = str(directory)
            except Exception as error:  # of any kind
                first = visible(str(error).strip().partition("\n")[0])
                raise ConfigError(
                    [
                        (
                            KEY,
                            f"{directory} cannot be loaded as {model_class}: "
                            f"{first.replace(str(local.path), str(directory))}: expected config.json "
                            "and weights in safetensors, as save_pretrained writes",
                        )
                    ]
                ) from error
        model.config.name_or_path = str(directory)
        super().__init__(model, score, batch, validation=validation, device=device, threads=threads)

    @property
    def _scored(self) -> Any:
        return self

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        samples: int = 1,
        *,
        seed: int | None = None,
        max_new_tokens: int = 64,
        **keywords: Any,
    ) -> list[list[Any]]:
        """Return what the model writes after each prompt.

        Args:
            prompts: texts, or lists of tokens of one length.
            samples: answers to each prompt; more than one need a seed.
            seed: of sampling; all candidates of a generation get the same random numbers if it is
                from their common batch. None: greedy decoding.
            max_new_tokens: limit of an answer.
            keywords: further ones of `generate` of the model, such as `temperature`.

        Returns:
            `samples` answers for each prompt, without the prompt: texts, or lists of tokens.

        Raises:
            ValueError: several samples of greedy decoding, which are all equal.
        """
        torch = self._torch
        if samples > 1 and seed is None:
            raise ValueError("several samples of greedy decoding are equal: expected a seed")
        is_text = isinstance(prompts[0], str)
        if is_text:
            encoded = self.tokenizer(list(prompts), return_tensors="pt", padding=True)
            tokens, mask = encoded["input_ids"], encoded["attention_mask"]
        else:
            tokens = torch.tensor([list(prompt) for prompt in prompts])
            mask = torch.ones_like(tokens)
        device = self.module.device
        cuda = [device] if device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            if seed is not None:
                torch.manual_seed(seed)
            written = self.module.generate(
                input_ids=tokens.to(device),
                attention_mask=mask.to(device),
                do_sample=seed is not None,
                num_return_sequences=samples,
                max_new_tokens=max_new_tokens,
                **keywords,
            )[:, tokens.shape[1] :]
        answers: list[Any] = (
            self.tokenizer.batch_decode(written, skip_special_tokens=True)
            if is_text
            else written.tolist()
        )
        return [answers[i : i + samples] for i in range(0, len(answers), samples)]


def set_up_torch(threads: int = 1) -> None:
    """Set PyTorch, in this process, to what gives equal bits on every rank.

    Args:
        threads: of an operation on a CPU; results depend on it.
    """
    torch = _library("torch")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@contextlib.contextmanager
def _visible_messages(library: str) -> Iterator[None]:
    """Escape control characters in the messages of a library, which repeat texts of its files."""

    def escape(record: logging.LogRecord) -> bool:
        record.msg, record.args = visible_lines(record.getMessage()), ()
        return True

    handlers = logging.getLogger(library).handlers
    for handler in handlers:
        handler.addFilter(escape)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(escape)


def _library(name: str) -> Any:
    """Return a module; ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            [
                (
                    KEY,
                    f"the engine needs {name}, which cannot be imported ({error}): pip install {name}",
                )
            ]
        ) from error
