"""A character transformer that writes arithmetic expressions, fine-tuned on which are valid.

    python transformer_model.py pretrain base.safetensors     # by gradients, on two kinds of text
    python transformer_model.py measure base.safetensors RUN  # valid expressions, loss on words
    python transformer_model.py drift base.safetensors        # of weights that are restored

The texts for the pre-training are made here: English from the documentation in Python's standard
library, and expressions of which some are broken. Whether an expression is valid, Python says: no
gradient passes through that.
"""

from __future__ import annotations

import argparse
import ast
import operator
import pydoc_data.topics
import re
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from hpc_es.extend.engines import TorchEngine

CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789+-*/().,:?"
CODES = {character: code for code, character in enumerate(CHARACTERS)}
WORDS, EXPRESSION = "?", ":"  # the first character says which kind of text follows
OPERATORS = "+-*/"
FUNCTIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LENGTH = 24  # characters of a text, with the first one
PROMPT = 3  # characters of an expression that the model continues
BROKEN = 0.35  # share of expressions in the pre-training that are broken


class Block(nn.Module):
    """Attention to earlier characters, and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past):
        """Return the block's output, [batch, new, width], and keys and values of all positions."""
        batch, new, width = x.shape
        split = self.attention(self.first(x)).view(batch, new, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=past is None
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, new, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x)))), (key, value)


class Transformer(nn.Module):
    """A transformer on characters."""

    def __init__(self, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS))
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02 if "out" in name or "down" in name else 0.05)

    def forward(self, codes, pasts=None):
        """Return logits, [batch, new, characters], and what further characters attend to."""
        start = 0 if pasts is None else pasts[0][0].shape[2]
        x = self.characters(codes) + self.positions.weight[start : start + codes.shape[1]]
        found = []
        for index, block in enumerate(self.blocks):
            x, past = block(x, None if pasts is None else pasts[index])
            found.append(past)
        return self.head(self.norm(x)), found


# Texts.


def english() -> str:
    """Return English in the characters of the model."""
    text = " ".join(pydoc_data.topics.topics.values()).lower()
    kept = re.sub(f"[^{re.escape(CHARACTERS[1:-2])}]", " ", text)
    return re.sub(" +", " ", kept)


def expression(rng: np.random.Generator, depth: int = 2) -> str:
    """Return a valid expression."""
    if depth == 0 or rng.random() < 0.3:
        return str(rng.integers(1, 100))
    inner = expression(rng, depth - 1) + OPERATORS[rng.integers(4)] + expression(rng, depth - 1)
    return f"({inner})" if rng.random() < 0.4 else inner


def broken(text: str, rng: np.random.Generator) -> str:
    """Return an expression with a character left out, doubled or replaced."""
    place, kind = rng.integers(len(text)), rng.integers(3)
    middle = ("", text[place] * 2, "+*/()"[rng.integers(5)])[kind]
    return text[:place] + middle + text[place + 1 :]


def is_valid(text: str) -> bool:
    """Return whether a text, up to the end of its line, is an expression that has a value."""
    line, end, _ = text.partition("\n")
    if not end or not set(line) <= set("0123456789+-*/()"):
        return False
    try:
        value(ast.parse(line, mode="eval").body)
    except (SyntaxError, ArithmeticError, MemoryError, RecursionError):
        return False
    return True


def value(node) -> float:
    """Return the value of an expression; SyntaxError for what the grammar does not have."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in FUNCTIONS:
            return FUNCTIONS[type(op)](value(left), value(right))
        case ast.UnaryOp(ast.UAdd(), operand):
            return value(operand)
        case ast.UnaryOp(ast.USub(), operand):
            return -value(operand)
        case ast.Constant(number) if isinstance(number, int):
            return number
    raise SyntaxError(f"expected + - * / and numbers, found {type(node).__name__}")


def encoded(texts: list[str]):
    """Return the codes of texts of one length, int64[texts, length]."""
    return torch.tensor([[CODES[character] for character in text] for text in texts])


def word_texts(rng: np.random.Generator, count: int, text: str) -> list[str]:
    """Return pieces of a text, after the character for words."""
    starts = [rng.integers(len(text) - LENGTH) for _ in range(count)]
    return [WORDS + text[start : start + LENGTH - 1] for start in starts]


def expression_texts(rng: np.random.Generator, count: int) -> list[str]:
    """Return expressions, some of them broken, after the character for expressions."""
    texts: list[str] = []
    while len(texts) < count:
        one = expression(rng)
        one = broken(one, rng) if rng.random() < BROKEN else one
        if len(one) + 2 <= LENGTH:
            texts.append((EXPRESSION + one + "\n").ljust(LENGTH, "\n"))
    return texts


def divided() -> tuple[str, str]:
    """Return the English of the training, and what is held out."""
    text = english()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


# The pre-training.


def pretrain(path: Path, steps: int, batch: int, seed: int = 0, **shape: int) -> None:
    """Train on words and expressions alike, and write the weights.

    It continues from its last hundredth step after an interruption.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module, part = Transformer(**shape), path.with_suffix(".part")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01)
    first, (text, _) = 0, divided()
    if part.exists():
        stored = torch.load(part, weights_only=True)
        module.load_state_dict(stored["module"])
        optimizer.load_state_dict(stored["optimizer"])
        first = stored["step"]
    for step in range(first, steps):
        rng = np.random.default_rng([seed, step])
        texts = word_texts(rng, batch // 2, text) + expression_texts(rng, batch - batch // 2)
        codes = encoded(texts)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
        logits, _ = module(codes[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 25 == 0:
            print(f"step {step + 1} of {steps}  loss {loss.item():.3f}", flush=True)
            stored = {"module": module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**stored, "step": step + 1}, part.with_suffix(".new"))
            part.with_suffix(".new").replace(part)
    safetensors.torch.save_file(module.state_dict(), path)


# The reward.


@torch.no_grad()
def written(module, prompts: list[str], samples: int, seed: int) -> list[str]:
    """Return texts that continue each prompt, `samples` for each, with their prompts.

    The random numbers follow from the seed, so that all candidates of a generation get the same.
    """
    texts = [prompt for prompt in prompts for _ in range(samples)]
    uniform = np.random.default_rng(seed).random((LENGTH, len(texts)), np.float32)
    codes = encoded(texts)
    logits, pasts = module(codes)
    for place in range(codes.shape[1], LENGTH):
        chances = logits[:, -1].float().softmax(1).cumsum(1)
        drawn = (chances < torch.from_numpy(uniform[place])[:, None]).sum(1)
        new = drawn.clamp(max=len(CHARACTERS) - 1)[:, None]
        codes = torch.cat([codes, new], 1)
        if place + 1 < LENGTH:
            logits, pasts = module(new, pasts)
    return ["".join(CHARACTERS[code] for code in row) for row in codes.tolist()]


def valid_share(module, batch) -> float:
    """Return the share of valid expressions."""
    texts = written(module, batch["prompts"], batch["samples"], batch["seed"])
    return sum(is_valid(text[1:]) for text in texts) / len(texts)


def prompts_of(seed: int, count: int) -> list[str]:
    """Return the beginnings of expressions, which are not broken yet."""
    rng, found = np.random.default_rng([1, seed]), []
    while len(found) < count:
        text = expression(rng)
        if len(text) > PROMPT:
            found.append(EXPRESSION + text[:PROMPT])
    return found


@torch.no_grad()
def word_loss(module, count: int = 512) -> float:
    """Return the cross-entropy of held-out words in nats a character, the old task."""
    codes = encoded(word_texts(np.random.default_rng(7), count, divided()[1]))
    logits, _ = module(codes[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten()).item()


def loaded(path: str | Path, **shape: int) -> Transformer:
    """Return the transformer with the weights of a file."""
    module = Transformer(**shape)
    module.load_state_dict(safetensors.torch.load_file(path))
    return module


def make(
    weights="base.safetensors",
    dtype="float32",
    prompts=16,
    samples=4,
    held_out=64,
    width=384,
    layers=6,
    heads=6,
):
    """Return the engine; weights are a path in the current directory."""
    module = loaded(weights, width=width, layers=layers, heads=heads).to(getattr(torch, dtype))

    def batch(seed):
        return {"prompts": prompts_of(seed, prompts), "samples": samples, "seed": seed}

    def validation():
        return {"prompts": prompts_of(2**31, held_out), "samples": 8, "seed": 1}

    return TorchEngine(module, valid_share, batch, validation=validation)


def measure(base: Path, run: str) -> None:
    """Print what a run has changed: valid expressions and the loss on words, before and after."""
    import hpc_es

    model = hpc_es.load_model(run, "last")
    kwargs = dict(model.config.task.model_kwargs)
    shape = {name: kwargs[name] for name in ("width", "layers", "heads") if name in kwargs}
    batch = model.parameters.validation()
    after = model.parameters.module.float()
    for name, module in (("before", loaded(base, **shape)), ("after", after)):
        valid, loss = valid_share(module, batch), word_loss(module)
        print(f"{name}: valid {valid:.3f}, loss on words {loss:.4f}")


@torch.no_grad()
def drift(base: Path, candidates: int = 30, sigma: float = 0.01, **shape: int) -> dict[str, float]:
    """Return how far the weights in bfloat16 are from where they began after some candidates.

    It is the root mean square, for weights that are perturbed and restored in place, and for those
    that an engine gets from a master in float32.
    """
    module = loaded(base, **shape)
    masters = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    engine = TorchEngine(module.bfloat16(), valid_share, prompts_of)
    weights = dict(engine.module.named_parameters())
    first = {name: weight.clone() for name, weight in weights.items()}
    noise = torch.Generator()

    def moved() -> float:
        squares = [(weights[name].float() - first[name].float()).square().sum() for name in first]
        return (sum(squares) / sum(weight.numel() for weight in first.values())).sqrt().item()

    found = {}
    for number in range(candidates):
        for sign in (1, -1):
            noise.manual_seed(number)
            for weight in weights.values():
                eps = torch.randn(weight.shape, generator=noise, dtype=torch.bfloat16)
                weight.add_(sign * sigma * eps)
    found["perturbed and restored in place"] = moved()
    for number in range(candidates):
        noise.manual_seed(number)
        for name, master in masters.items():
            candidate = master + sigma * torch.randn(master.shape, generator=noise)
            engine.load(name, candidate.numpy())
    for name, master in masters.items():
        engine.load(name, master.numpy())
    found["written from a master"] = moved()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    training, measuring = commands.add_parser("pretrain"), commands.add_parser("measure")
    drifting = commands.add_parser("drift")
    training.add_argument("path", type=Path)
    training.add_argument("--steps", type=int, default=400)
    training.add_argument("--batch", type=int, default=64)
    for parser_of_shape in (training, drifting):
        for name, default in (("width", 384), ("layers", 6), ("heads", 6)):
            parser_of_shape.add_argument(f"--{name}", type=int, default=default)
    for parser_of_base in (measuring, drifting):
        parser_of_base.add_argument("base", type=Path)
    measuring.add_argument("run")
    given = vars(parser.parse_args())
    match given.pop("command"):
        case "pretrain":
            pretrain(**given)
        case "measure":
            measure(**given)
        case _:
            for method, moved_by in drift(**given).items():
                print(f"{method}: {moved_by:.3g}")
