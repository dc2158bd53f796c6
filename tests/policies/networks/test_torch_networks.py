"""Modules of PyTorch as networks: what they compute, what they are refused for, and the bits of
their calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import torch

from hpc_es.core.data import Box, Discrete, ObservationSpec, Spaces
from hpc_es.core.errors import ConfigError
from hpc_es.core.population import Explicit, Factorisation, LowRank, candidate_parts
from hpc_es.policies.network import Options, build
from hpc_es.policies.networks.torch_calls import factored_names
from hpc_es.policies.networks.torch_networks import TorchNetwork
from tests.helpers import torch_nets

NETS = "tests.helpers.torch_nets:"
FOUR = ObservationSpec((4,), np.dtype("float32"))
ACTIONS = Box(-np.ones(2, np.float32), np.ones(2, np.float32))


def policy(name: str, observations: ObservationSpec = FOUR, **options: Any) -> Any:
    keywords = {"backend": "torch", "candidates_per_call": 3, **options}
    return build(Options(network=NETS + name, **keywords), Spaces(observations, Discrete(2)))


def candidates(layout: Any, rows: int) -> Explicit:
    vectors = np.random.default_rng(1).normal(0, 0.5, (rows, layout.size)).astype(np.float32)
    return Explicit(layout, vectors)


def outputs(acting: Any, steps: int, observations: Any) -> list[Any]:
    """The outputs of the network itself, in a call of 3 candidates."""
    call = acting._call
    parts = {name: candidates(acting.layout, 3).part(name) for name in acting.layout.shapes}
    parameters, memory = call.load(parts, {}), [np.stack([leaf] * 3) for leaf in call.memory]
    results = []
    for step in range(steps):
        result, memory = call.step(parameters, memory, observations[step])
        results.append(np.asarray(result).copy())
    return results


@pytest.mark.parametrize(
    "name", ["plain", "lstm", "gru_cell", "rnn", "two_ways", "lstm_cell", "convolving"]
)
def test_call_computes_what_pytorch_computes_for_each_candidate(name: str) -> None:
    """The module itself, with the weights of one candidate, in a plain call of PyTorch."""
    shape = (2, 6, 6) if name == "convolving" else (4,)
    acting = policy(name, ObservationSpec(shape, np.dtype("float32")))
    seen = np.random.default_rng(2).normal(size=(3, 3, *shape)).astype(np.float32)
    found = outputs(acting, 3, seen)
    module = acting.network.module
    for candidate in range(3):
        theta = candidates(acting.layout, 3).vectors[candidate]
        module.load_state_dict(acting.network.tensors(theta), strict=False)
        memory = [module.memory()] if hasattr(module, "memory") else []
        for step in range(3):
            with torch.no_grad():
                result = module(torch.from_numpy(seen[step, candidate][None]), *memory)
            wanted, *memory = result if memory else (result,)
            np.testing.assert_allclose(found[step][candidate], wanted[0].numpy(), atol=2e-6)


@pytest.mark.parametrize("name", ["plain", "lstm", "gru_cell", "convolving"])
def test_bits_of_a_candidate_depend_neither_on_its_place_nor_on_the_others(name: str) -> None:
    """Seven candidates in calls of three, also when some are dropped, and one alone."""
    shape = (2, 6, 6) if name == "convolving" else (4,)
    acting = policy(name, ObservationSpec(shape, np.dtype("float32")), action_bounds="clip")
    seen = np.random.default_rng(2).normal(size=(7, *shape)).astype(np.float32)
    population = candidates(acting.layout, 7)
    call = acting._call

    def of(rows: list[int]) -> Any:
        padded = (rows * 3)[:3]
        parts = {part: population.part(part)[padded] for part in acting.layout.shapes}
        memory = [np.stack([leaf] * 3) for leaf in call.memory]
        result, _ = call.step(call.load(parts, {}), memory, seen[padded])
        return np.asarray(result)

    whole = {row: of([row])[0].tobytes() for row in range(7)}
    for rows in ([0, 1, 2], [2, 0, 1], [6, 0, 3], [5, 5, 6]):
        for place, row in enumerate(rows):
            assert of(rows)[place].tobytes() == whole[row]


def test_parameters_without_gradient_and_buffers_are_constants() -> None:
    def frozen(observations: Any, outputs: int) -> Any:
        net = torch_nets.plain(observations, outputs)
        net[1].weight.requires_grad_(False)
        return net

    network = TorchNetwork(lambda seed: frozen(FOUR, 2), frozen(FOUR, 2), "net", FOUR, False)
    assert [*network.layout.shapes] == ["1.bias", "3.weight", "3.bias"]


def test_kernels_of_convolutions_are_matrices_of_the_product_that_they_are() -> None:
    acting = policy("convolving", ObservationSpec((2, 6, 6), np.dtype("float32")))
    assert acting.layout.shapes["0.weight"] == (5, 2 * 3 * 3)
    initial = acting.initial(np.random.default_rng(0))
    assert acting.network.tensors(initial)["0.weight"].shape == (5, 2, 3, 3)


def test_initial_parameters_follow_from_the_seed_and_global_generators_are_kept() -> None:
    acting = policy("plain")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (acting.initial(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.tobytes() == again.tobytes() != other.tobytes()


# Low rank: worked by hand in `Factored`'s equation, x (W + sum_k left_k right_k)^T.


@pytest.mark.parametrize("name", ["plain", "lstm", "multiplying", "embedding"])
def test_factors_give_the_outputs_of_formed_weights(name: str) -> None:
    observations = ObservationSpec((4,), np.dtype("int64" if name == "embedding" else "float32"))
    acting = policy(name, observations)
    factorisation = Factorisation(acting.layout, 1)
    rng = np.random.default_rng(3)
    centre = acting.initial(rng)
    numbers = rng.normal(size=(3, factorisation.compact.size)).astype(np.float32)
    scales = np.array([0.5, -0.5, 0.25], np.float32)
    low_rank = LowRank(factorisation, centre, numbers, np.array([0, 0, 2]), scales)
    assert acting.factored([*low_rank.matrices]) == (*low_rank.matrices,)
    call, formed = acting._call_for(low_rank), acting._call
    assert call is not formed
    seen = rng.integers(0, 3, (3, 4)) if name == "embedding" else rng.normal(size=(3, 4))
    seen = seen.astype(observations.dtype)
    results = []
    for one in (call, formed):
        common, parts = candidate_parts(low_rank, one.layout, one.factored)
        memory = [np.stack([leaf] * 3) for leaf in one.memory]
        results.append(np.asarray(one.step(one.load(parts, common), memory, seen)[0]).copy())
    np.testing.assert_allclose(*results, atol=2e-5)
    assert not np.allclose(results[0][0], results[0][1])


def test_kernels_of_convolutions_are_formed() -> None:
    observations = ObservationSpec((2, 6, 6), np.dtype("float32"))
    acting = policy("convolving", observations)
    matrices = [*Factorisation(acting.layout, 1).matrices]
    assert matrices == ["0.weight", "3.weight"]
    assert factored_names(acting.network, matrices, observations) == ("3.weight",)


# What is refused.

REFUSED = {
    "dropout": "the layer '1' of tests.helpers.torch_nets:dropout (Dropout) does nothing outside of training",
    "batch_norm": "the layer '1' of tests.helpers.torch_nets:batch_norm (BatchNorm1d) has statistics, which only",
    "branching": "in its layer '0': its Python code branches on values of tensors",
    "reading": "in its layer '0': Python code cannot read the values of tensors",
    "masking": "in its layer '0': the shape of a result depends on values of tensors",
    "drawing": "in its layer '0': it draws random numbers when it acts",
    "python_drawing": "two calls of tests.helpers.torch_nets:python_drawing with the same arguments differ",
    "counting": "changes its '0.count' when it acts, so that it has state of its own",
    "remembering": "changes its '0.seen' when it acts, so that it has state of its own",
    "writing": "in its layer '0': it writes into a tensor of its own when it acts",
    "wide": "expected outputs float32[2] of tests.helpers.torch_nets:wide (a logit for each action of Discrete(2)), found",
    "failing": "in its layer '0': RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    "several": "found tuple of length 2: expected a module whose outputs depend on its inputs only",
    "whole": "found '0.table' int64[3] (24 bytes): keep it as a buffer (register_buffer)",
    "growing": "like its memory(), [float32[1, 7]], found [float32[1, 14]]: keep its shapes",
    "nothing_known": "to return a torch.nn.Module, or an object with layout, backend, initial, memory and apply, found int",
    "unordered": "returns different networks in two calls with the same arguments: the initial values of 'weight'",
    "scripted": "is compiled by TorchScript",
    "without_parameters": "expected at least one parameter with requires_grad",
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_cannot_be_used_are_refused_with_path_and_remedy(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        policy(name)
    text = str(refused.value)
    assert text.startswith("policy.network: ") and REFUSED[name] in text


@pytest.mark.parametrize("name", ["dropout", "batch_norm"])
def test_layers_of_training_are_accepted_as_frozen(name: str) -> None:
    assert policy(name, frozen=True).layout.size > 0
