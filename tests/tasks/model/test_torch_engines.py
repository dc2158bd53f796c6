"""Engines of PyTorch and Hugging Face: weights, rounding, digests, and what is refused."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import torch

import hpc_es
from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.core.population import Directions, Perturbed
from hpc_es.extend.engines import HuggingFaceEngine, TorchEngine, directory_sha256
from hpc_es.noise.counter import CounterNoise
from hpc_es.tasks.model.engine import Engine
from hpc_es.tasks.model.hugging_face_files import local_model
from hpc_es.tasks.model.torch_engines import _visible_messages
from hpc_es.training.check import check
from tests.helpers import runs, torch_engines


def config(name: str, kwargs: Any = None, **sections: Any) -> Any:
    return validate(
        {
            "seed": 1,
            "task": {
                "kind": "model",
                "model": f"tests.helpers.torch_engines:{name}",
                "model_kwargs": kwargs or {},
                "call": "each",
            },
            "algorithm": {
                **{"kind": "es", "population_size": 8, "sigma": 0.05},
                "optimizer": {"kind": "adam", "learning_rate": 0.02},
            },
            "noise": {"kind": "counter", "rank": 1},
            "checkpoint": {"interval": 1, "full_interval": 10},
            "evaluation": {"interval": 2},
            "report": {"plot_interval_seconds": 0},
            "stop": {"generations": 4},
            **sections,
        }
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny causal language model with random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    model.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_trained_parameters_are_searched_and_others_are_constants() -> None:
    engine = torch_engines.network()
    # the tied weight is there once
    assert list(engine.parameters()) == ["first.weight", "first.bias", "second.bias"]
    assert list(engine.constants()) == ["frozen.weight", "frozen.bias", "shift"]
    assert engine.parameters()["first.weight"].shape == (4, 4)


def test_candidates_are_rounded_once_to_bfloat16() -> None:
    engine = Engine(made := torch_engines.network("bfloat16"), "network")
    assert engine.bytes == 2 * engine.layout.size
    noise, centre = CounterNoise(Keys(1), engine.layout.size), engine.first_weights()
    scales, rows = np.array([0.1, -0.1], np.float32), np.zeros(2, np.intp)
    for generation in range(20):
        directions = Directions(noise, generation, [3])
        population = Perturbed(engine.layout, centre[np.newaxis], directions, rows, scales)
        for row in range(2):
            engine.write(population.only(row))
            expected = torch.from_numpy(population.part("first.weight")[row]).bfloat16()
            assert torch.equal(made.module.first.weight, expected)
    engine.write(Perturbed(engine.layout, centre[np.newaxis], directions, rows[:1], scales[:1] * 0))
    # a drift of 0 after 40 candidates: the first weights have values of bfloat16
    assert torch.equal(
        made.module.first.weight.float(), torch.from_numpy(centre[:16].reshape(4, 4))
    )


def test_traced_modules_are_engines_with_the_same_candidates_and_scores() -> None:
    """Such a module has the names and weights of the one that it was traced from."""
    made = [torch_engines.network(), torch_engines.traced()]
    own, traced = (Engine(one, "network") for one in made)
    assert own.layout.shapes == traced.layout.shapes
    noise, rows = CounterNoise(Keys(1), own.layout.size), np.zeros(1, np.intp)
    directions, scales = Directions(noise, 0, [3]), np.array([0.1], np.float32)
    centre = own.first_weights()[np.newaxis]
    scores = []
    for engine, one in ((own, made[0]), (traced, made[1])):
        one.module.load_state_dict(made[0].module.state_dict())
        engine.write(Perturbed(engine.layout, centre, directions, rows, scales))
        scores.append(float(one.score(one.batch(0))[0]))
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert scores[0] != pytest.approx(float(torch_engines.network().score(made[0].batch(0))[0]))


@pytest.mark.parametrize("what", ["module", "state_dict"])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("each", "found dict without .*load: write them; TorchEngine and HuggingFaceEngine of"),
        ("compiled", "call: each"),
    ],
)
def test_parts_of_pytorch_are_refused_with_what_takes_them(
    what: str, call: str, expected: str
) -> None:
    """Scores of PyTorch have no compiled calls, and an engine has methods."""
    task = {"kind": "model", "model": "tests.helpers.torch_engines:parts", "call": call}
    with pytest.raises(ConfigError, match=expected):
        check(config("parts", task={**task, "model_kwargs": {"what": what}}))


def test_digest_follows_from_every_weight_and_buffer() -> None:
    def digest(change: Any = None) -> str:
        torch.manual_seed(0)
        module = torch_engines.Network()
        if change:
            change(module)
        made = TorchEngine(module, torch_engines.score, torch_engines.batch)
        return Engine(made, "network").base_sha256

    assert digest() == digest()
    assert digest(lambda module: module.first.bias.data.add_(1)) != digest()
    assert digest(lambda module: module.frozen.bias.data.add_(1)) != digest()
    assert digest(lambda module: module.shift.add_(1)) != digest()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dropping", "two calls of score .* with the same weights and batch return"),
        ("vector", "found Tensor of shape .8, 2.: take its mean"),
        ("frozen", "expected parameters with requires_grad in Network, found none"),
    ],
)
def test_wrong_engines_are_refused(name: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        check(config(name), output=tmp_path / "run")


def test_something_else_than_a_module_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"expected a torch.nn.Module, found dict: pass the model"
    ):
        TorchEngine({}, torch_engines.score, torch_engines.batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_networks_learn_and_are_loaded(dtype: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    longer = {"stop": {"generations": 40}, "report": {"plot_interval_seconds": 0, "info": ["rows"]}}
    rows = list(hpc_es.train(config("network", {"dtype": dtype}, **longer), run))
    assert rows[-2]["centre_score_mean"] > rows[0]["centre_score_mean"] + 0.3
    assert rows[0]["info_rows"] == 8
    model = hpc_es.load_model(run, "last")
    expected = torch.from_numpy(model.arrays["first.weight"]).to(getattr(torch, dtype))
    assert torch.equal(model.parameters.module.first.weight, expected)


def test_hugging_face_models_run_from_a_local_directory(directory: Path, tmp_path: Path) -> None:
    kwargs = {"directory": str(directory), "sha256": directory_sha256(directory)}
    first, second = tmp_path / "first", tmp_path / "second"
    rows = list(hpc_es.train(config("language", kwargs), first))
    assert 0 < rows[0]["score_mean"] < 1
    list(hpc_es.train(config("language", kwargs), second))
    runs.assert_same(first, second)


def test_samples_follow_from_the_seed(directory: Path) -> None:
    engine = torch_engines.language(str(directory))
    prompts = [[1, 2, 3], [4, 5, 6]]
    answers = engine.generate(prompts, 3, seed=1, max_new_tokens=4)
    assert [len(group) for group in answers] == [3, 3]
    assert len({tuple(answer) for answer in answers[0]}) > 1
    torch.manual_seed(9)
    assert engine.generate(prompts, 3, seed=1, max_new_tokens=4) == answers
    assert engine.generate(prompts, 3, seed=2, max_new_tokens=4) != answers
    with pytest.raises(ValueError, match="expected a seed"):
        engine.generate(prompts, 3)


def test_missing_and_changed_base_weights_are_refused(directory: Path, tmp_path: Path) -> None:
    digest = directory_sha256(directory)
    weights = directory / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigError, match=f"expected base weights with SHA-256 {digest} in"):
        torch_engines.language(str(directory), digest)
    weights.unlink()
    with pytest.raises(ConfigError, match="expected a directory with weights in safetensors"):
        torch_engines.language(str(directory), digest)


def test_directories_without_a_model_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be loaded as AutoModelForCausalLM"):
        HuggingFaceEngine(tmp_path, torch_engines.score, torch_engines.batch)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("model.safetensors.index.json", {"weight_map": {"w": "../x.safetensors"}}, "'../x.safe"),
        ("config.json", {"attn_implementation": "someone/kernel"}, "'someone/kernel' in config"),
        ("config.json", {"text_config": {"_attn_implementation": {"": "a/b:c"}}}, "'a/b:c' in con"),
        (
            "config.json",
            {"transformers_weights": "sub/w.safetensors"},
            "'sub/w.safetensors' in con",
        ),
        ("adapter_config.json", {"base_model_name_or_path": "/other"}, "a part of a model"),
    ],
)
def test_models_that_name_files_of_elsewhere_are_refused(
    file: str, content: object, expected: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"files are all in .*{expected}"):
        HuggingFaceEngine(tmp_path, torch_engines.score, torch_engines.batch)


def test_what_is_not_in_the_digest_is_not_read(directory: Path, tmp_path: Path) -> None:
    """Templates and vocabularies in other directories, and a file that takes another's place."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "a": 1, "b": 2}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, unk_token="[UNK]").save_pretrained(
        directory
    )
    (directory / "additional_chat_templates").mkdir()
    os.mkfifo(directory / "additional_chat_templates" / "default.jinja")
    (tmp_path / "vocab.json").write_text('{"secret": 0, "[UNK]": 1}')
    config = json.loads((directory / "tokenizer_config.json").read_text())
    paths = dict.fromkeys(("vocab_file", "vocab", "tokenizer_file"), str(tmp_path / "vocab.json"))
    listed = {"fast_tokenizer_files": [str(tmp_path / "vocab.json"), "../vocab.json"]}
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, **paths, **listed}))
    with local_model(directory) as local:
        assert local.sha256 == directory_sha256(directory)
        kept = json.loads((local.path / "tokenizer_config.json").read_text())
        # what does not exist does no harm
        assert kept.pop("fast_tokenizer_files") == ["../vocab.json"]
        assert kept == {name: value for name, value in config.items() if name not in paths}
        before = (directory / "model.safetensors").read_bytes()
        (directory / "model.safetensors").rename(tmp_path / "moved")
        (directory / "model.safetensors").write_bytes(b"theirs")
        assert (local.path / "model.safetensors").read_bytes() == before
        (tmp_path / "moved").rename(directory / "model.safetensors")
    engine = HuggingFaceEngine(directory, torch_engines.score, torch_engines.batch)
    assert engine.tokenizer.get_vocab() == words
    assert engine.tokenizer.name_or_path == engine.module.config.name_or_path == str(directory)


def test_messages_about_a_model_are_visible() -> None:
    """Such as of transformers, which repeats names of a config."""
    logger, said = logging.getLogger("transformers"), io.StringIO()
    handler = logging.StreamHandler(said)
    logger.addHandler(handler)
    try:
        with _visible_messages("transformers"):
            logger.warning("one\nrope_type=%s", "\x1b[31m")
        logger.warning("%s", "as it is")
    finally:
        logger.removeHandler(handler)
    assert said.getvalue() == "one\nrope_type=\\x1b[31m\nas it is\n"


def test_the_digest_covers_the_chat_template_and_waits_for_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    digest = directory_sha256(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert directory_sha256(tmp_path) != digest
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="expected a regular file"):
        directory_sha256(tmp_path)
