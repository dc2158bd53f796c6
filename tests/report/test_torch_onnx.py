"""ONNX models of modules of PyTorch compute the actions of the policy in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import hpc_es
from hpc_es import cli
from hpc_es.core.data import Discrete, MultiDiscrete, ObservationSpec, Spaces
from hpc_es.core.errors import UserError
from hpc_es.core.population import unperturbed
from hpc_es.policies.network import Options, build
from hpc_es.policies.networks.keras_models import Affine, Clip, EnvironmentTransformations
from tests.helpers import runs
from tests.helpers.trained import BOX, NORMALISER, WIDTH

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"
SEEN = np.random.default_rng(5).normal(0, 2, (1000, WIDTH)).astype(np.float32)


def run_of(name: str, directory: Path) -> Path:
    network = f"'tests.helpers.torch_nets:{name}'"
    policy = f"policy={{kind: network, network: {network}, backend: torch, candidates_per_call: 3}}"
    options = [policy, NORMALISED, "stop.generations=1"]
    runs.here(runs.tiny(directory), directory / "run", options)
    return directory / "run"


@pytest.mark.parametrize("name", ["plain", "lstm"])
def test_exported_policy_acts_like_the_loaded_one(name: str, tmp_path: Path) -> None:
    """On 1,000 observations, which a recurrent policy sees as one episode."""
    run, file = run_of(name, tmp_path), tmp_path / "policy.onnx"
    assert cli.run(["export", str(run), str(file), "--which", "last"]) == 0
    model = onnxruntime.InferenceSession(file)
    (observation, *memory), loaded = model.get_inputs(), hpc_es.load_policy(run, "last")
    assert observation.name == "observation" and observation.shape == [1, 4]
    assert [leaf.name for leaf in memory] == (["memory_0", "memory_1"] if memory else [])
    kept = {leaf.name: np.zeros(leaf.shape, np.float32) for leaf in memory}
    acted, expected = [], []
    for x in SEEN[:, :4]:
        action, *after = model.run(None, {"observation": x[None], **kept})
        kept = dict(zip(kept, after, strict=True))
        acted.append(action[0])
        expected.append(loaded(x))
    assert len(np.unique(expected)) > 1
    np.testing.assert_allclose(acted, expected, atol=1e-5)


HEADS: dict[str, Any] = {
    "box": (BOX, {}),
    "squash": (BOX, {"action_bounds": "squash"}),
    "bins": (BOX, {"action_bins": 5}),
    "from_minus_two": (Discrete(3, -2), {}),
    "choices": (MultiDiscrete((2, 3)), {}),
}
LESS_OFTEN = ("box", "bins", "from_minus_two")


@pytest.mark.parametrize(
    "head",
    ["squash", "choices", *(pytest.param(head, marks=pytest.mark.long) for head in LESS_OFTEN)],
)
def test_heads_act_like_those_of_the_policy(head: str, tmp_path: Path) -> None:
    from hpc_es.report.onnx_torch import onnx_bytes

    space, options = HEADS[head]
    spaces = Spaces(ObservationSpec((WIDTH,)), space)
    network = "tests.helpers.torch_nets:plain"
    policy = build(Options(network=network, backend="torch", **options), spaces)
    theta = np.random.default_rng(4).normal(size=policy.layout.size).astype(np.float32)
    keywords: Any = {"normaliser": NORMALISER, "around": None, "spaces": spaces, "title": ""}
    model = onnxruntime.InferenceSession(onnx_bytes(tmp_path, policy, theta, **keywords))
    acted = np.stack([model.run(None, {"observation": x[None]})[0][0] for x in SEEN])
    alone = unperturbed(policy.layout, theta, jobs=len(SEEN))
    expected = policy.bind(alone, NORMALISER).act(SEEN)
    assert acted.dtype == expected.dtype
    np.testing.assert_allclose(acted, expected, atol=1e-5)


def test_wrappers_of_the_environment_are_around_the_policy(tmp_path: Path) -> None:
    """Observations are clipped to [-1, 1] after 2 x + 1, actions scaled by 3."""
    from hpc_es.report.onnx_torch import onnx_bytes

    spaces = Spaces(ObservationSpec((WIDTH,)), BOX)
    policy = build(Options(network="tests.helpers.torch_nets:plain", backend="torch"), spaces)
    theta = np.random.default_rng(4).normal(size=policy.layout.size).astype(np.float32)
    ones, two = np.ones(WIDTH, np.float32), np.ones(2, np.float32)
    before = [Affine(2 * ones, ones), Clip(-ones, ones)]
    around = EnvironmentTransformations((WIDTH,), before, [Affine(3 * two, 0 * two)])
    keywords: Any = {"normaliser": None, "around": around, "spaces": spaces, "title": ""}
    model = onnxruntime.InferenceSession(onnx_bytes(tmp_path, policy, theta, **keywords))
    acted = np.stack([model.run(None, {"observation": x[None]})[0][0] for x in SEEN])
    alone = unperturbed(policy.layout, theta, jobs=len(SEEN))
    expected = 3 * policy.bind(alone, None).act(np.clip(2 * SEEN + 1, -1, 1))
    np.testing.assert_allclose(acted, expected, atol=1e-5)


def test_failure_of_the_exporter_is_told_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no operator")

    run, file = run_of("plain", tmp_path), tmp_path / "policy.onnx"
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match=r"as \.onnx: RuntimeError: no operator.*: \.pt writes"):
        cli.run(["export", str(run), str(file)])
    assert not file.exists()
    with pytest.raises(UserError, match=r"as \.py, as mlp, lstm, cnn can: \.onnx, \.pt or \.saf"):
        cli.run(["export", str(run), str(file.with_suffix(".py"))])
