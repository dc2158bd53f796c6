"""Runs of modules of PyTorch: bit-identical on any number of ranks and after a kill, with every
command.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
import hpc_es
from hpc_es import cli
from hpc_es.core.errors import ConfigError
from tests.helpers import runs
from tests.helpers.time_limit import time_limit

NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"


def policy(name: str) -> str:
    network = f"'tests.helpers.torch_nets:{name}'"
    return f"policy={{kind: network, network: {network}, backend: torch, candidates_per_call: 3}}"


@pytest.mark.parametrize(
    "name",
    ["lstm", *(pytest.param(name, marks=pytest.mark.long) for name in ("plain", "gru_cell"))],
)
def test_killed_on_three_ranks_and_resumed_on_two_the_result_is_that_of_one(
    name: str, tmp_path: Path
) -> None:
    options, run = (policy(name), NORMALISED, *runs.EVERY), tmp_path / "three"
    end = runs.killed_and_resumed(run, 3, 2, *options)
    runs.here(runs.tiny(tmp_path), tmp_path / "one", [*options, f"stop.generations={end}"])
    runs.assert_same(run, tmp_path / "one")


def test_results_do_not_depend_on_the_chunk_size(tmp_path: Path) -> None:
    config = runs.tiny(tmp_path)
    for size in ("1", "5", "auto"):
        runs.here(config, tmp_path / size, [policy("lstm"), NORMALISED, f"mpi.chunk_size={size}"])
    assert len({runs.digest(runs.newest(tmp_path / size)) for size in ("1", "5", "auto")}) == 1


def test_loaded_policy_acts_like_the_one_in_training(tmp_path: Path) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", [policy("lstm"), NORMALISED])
    loaded = hpc_es.load_policy(tmp_path / "run", "last")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    together = loaded(observations)
    assert together.shape == (5, 2)
    loaded.restart()
    assert loaded(observations[3]).tobytes() == together[3].tobytes()


def test_check_eval_and_init_from(tmp_path: Path, capsys: Any) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    assert cli.run(["check", str(config), policy("gru_cell"), NORMALISED]) == 0
    runs.here(config, run, [policy("gru_cell"), NORMALISED])
    recorded = runs.newest(run).provenance["compiled_for"]
    assert recorded["platform"] == "cpu" and recorded["threads"] == 1
    assert recorded["candidates_per_call"] == 3 and recorded["mkl_cbwr"] == "AUTO,STRICT"
    capsys.readouterr()
    assert cli.run(["eval", str(run), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0
    start = [f"policy.init_from={run}", "stop.generations=0"]
    runs.here(config, tmp_path / "next", [policy("gru_cell"), NORMALISED, *start])
    before, after = (runs.newest(tmp_path / name).state.theta for name in ("run", "next"))
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(
    "noise",
    [
        "{kind: portable}",
        "{kind: portable, rank: 1}",
        pytest.param("{kind: counter, rank: 2}", marks=pytest.mark.long),
    ],
)
def test_noise_by_key_gives_the_same_results_on_every_number_of_ranks(
    noise: str, tmp_path: Path
) -> None:
    options = [policy("wider"), f"noise={noise}", "stop.generations=2"]
    runs.here(runs.tiny(tmp_path), tmp_path / "one", options)
    runs.finished(2, tmp_path / "two", *options)
    runs.assert_same(tmp_path / "one", tmp_path / "two")


def test_modules_get_candidates_of_portable_noise_with_the_bytes_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of generation 0 are theta + 0.1 d and theta - 0.1 d of six pairs, rounded once."""
    from hpc_es.core.keys import Keys
    from hpc_es.noise.counter import CounterNoise
    from hpc_es.noise.portable import fill
    from hpc_es.policies.networks.torch_calls import TorchCall

    seen: set[bytes] = set()
    load = TorchCall.load

    def recording(call: Any, parts: Any, common: Any) -> Any:
        if call.size is not None:
            rows = [np.concatenate([part[i].ravel() for part in parts.values()]) for i in range(3)]
            seen.update(row.tobytes() for row in rows)
        return load(call, parts, common)

    monkeypatch.setattr(TorchCall, "load", recording)
    options = [policy("plain"), "noise={kind: portable}", "stop.generations=0"]
    runs.here(runs.tiny(tmp_path), tmp_path / "start", options)
    theta = runs.newest(tmp_path / "start").state.theta
    seen.clear()
    runs.here(
        runs.tiny(tmp_path), tmp_path / "run", [*options[:-1], "stop.generations=1", *runs.EVERY]
    )
    noise = CounterNoise(Keys(1), len(theta), fill)
    for pair in range(6):
        step = np.float32(0.1) * noise.direction(0, pair, 0, len(theta))
        assert (theta + step).tobytes() in seen and (theta - step).tobytes() in seen


def test_candidates_that_do_not_fit_the_memory_are_refused_with_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 * 24 + 24 + 24 * 2 + 2 = 170 parameters, two times 4 bytes each; of rank 1, 4 + 24 + 24
    and 24 + 2 + 2 numbers.
    """
    monkeypatch.setattr("hpc_es.core.machine.memory_bytes", lambda: 4_000)
    command = ["check", str(runs.tiny(tmp_path)), policy("wider")]
    with pytest.raises(ConfigError) as refused:
        cli.run(command)
    text = "policy.candidates_per_call: is 3, but a call of so many candidates of 170 numbers needs at least 4,080 bytes,"
    assert f"{text} and this machine has 4,000 bytes of memory: expected at most 2" in str(
        refused.value
    )
    assert cli.run([*command, "noise={kind: counter, rank: 1}"]) == 0


def test_the_actor_critic_names_the_backends_that_it_differentiates(tmp_path: Path) -> None:
    task = "task={kind: episodes, env_id: CartPole-v1}"
    algorithm = "algorithm={kind: actor_critic, batch_size: 6}"
    text = "policy.backend: is torch, in which actor_critic computes no gradients: expected 'tensorflow' or 'jax'"
    with pytest.raises(ConfigError, match=text):
        cli.run(["check", str(runs.tiny(tmp_path)), policy("plain"), task, algorithm])


@pytest.mark.parametrize(
    ("section", "remedy"),
    [
        (
            "policy={kind: network, network: 'tests.helpers.torch_nets:plain'}",
            "policy.backend: torch for modules of PyTorch",
        ),
        (
            "task={kind: model, model: 'tests.helpers.torch_engines:network'}",
            "set task.call: each for an engine, such as a model of PyTorch",
        ),
    ],
)
def test_without_jax_the_default_is_refused_with_what_takes_pytorch(
    section: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax" else find(name)
    )
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", str(runs.tiny(tmp_path)), section])
    assert remedy in str(refused.value)


# Files.


def tensors(path: Path) -> Any:
    import torch

    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    from safetensors.torch import load_file

    return load_file(path)


@pytest.mark.parametrize("network", ["plain", "tied"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_exported_weights_load_into_the_module_and_start_a_new_run(
    suffix: str, network: str, tmp_path: Path
) -> None:
    """The module itself then acts like the policy, without hpc_es."""
    import torch

    from hpc_es.core.data import ObservationSpec
    from tests.helpers import torch_nets

    config, run, file = runs.tiny(tmp_path), tmp_path / "run", tmp_path / f"policy{suffix}"
    runs.here(config, run, [policy(network)])
    assert cli.run(["export", str(run), str(file), "--which", "last"]) == 0
    module = getattr(torch_nets, network)(ObservationSpec((4,)), 2)
    module.load_state_dict(tensors(file))
    seen = np.random.default_rng(0).normal(0, 0.1, (5, 4)).astype(np.float32)
    with torch.no_grad():
        acted = module(torch.from_numpy(seen)).numpy()
    np.testing.assert_allclose(hpc_es.load_policy(run, "last")(seen), acted, atol=1e-5)
    start = [f"policy.init_from={file}", "stop.generations=0"]
    runs.here(config, tmp_path / "next", [policy(network), *start])
    before, after = (runs.newest(tmp_path / name).state.theta for name in ("run", "next"))
    assert before.tobytes() == after.tobytes()


def test_names_of_one_parameter_with_different_tensors_are_refused(tmp_path: Path) -> None:
    import torch

    from hpc_es.core.data import ObservationSpec
    from tests.helpers import torch_nets

    contents = torch_nets.tied(ObservationSpec((4,)), 2).state_dict()
    file = tmp_path / "net.pt"
    torch.save({**contents, "4.weight": contents["4.weight"] + 1}, file)
    with pytest.raises(
        ConfigError, match=r"'4\.weight' of the file differs from '2\.weight', which"
    ):
        cli.run(["check", str(runs.tiny(tmp_path)), policy("tied"), f"policy.init_from={file}"])
    del contents["2.weight"]  # safetensors keep one of the names, whichever comes first
    torch.save(contents, file)
    options = [policy("tied"), f"policy.init_from={file}", "stop.generations=0"]
    runs.here(runs.tiny(tmp_path), tmp_path / "run", options)


class Planted:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("planted"),))


WRONG = {
    "other": "expected '1.weight' of the shape [7, 4], found [24, 4]",
    "missing": "expected the parameter '3.bias', which the file lacks",
    "more": "found 'extra', which the module lacks",
    "planted": "expected the state_dict of a module, as torch.save(module.state_dict(), path) writes it",
    "nowhere": "expected a file of weights, there is no",
}


@pytest.mark.parametrize("name", WRONG)
def test_files_of_other_modules_are_refused_and_no_code_of_theirs_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from hpc_es.core.data import ObservationSpec
    from tests.helpers import torch_nets

    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{name}.pt"
    own = torch_nets.plain(ObservationSpec((4,)), 2).state_dict()
    contents: Any = {
        "other": torch_nets.wider(ObservationSpec((4,)), 2).state_dict(),
        "missing": {part: tensor for part, tensor in own.items() if part != "3.bias"},
        "more": {**own, "extra": torch.zeros(1)},
        "planted": Planted(),
    }
    if name in contents:
        torch.save(contents[name], file)
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", str(runs.tiny(tmp_path)), policy("plain"), f"policy.init_from={file}"])
    assert WRONG[name] in str(refused.value)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("what", ["pipe", "device", "large", "directory"])
def test_files_of_somebody_else_cost_one_line(what: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"net{suffix}"
    match what:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "large":  # 2^40 bytes that take no room
            with file.open("wb") as stream:
                stream.truncate(1 << 40)
        case "directory":
            file.mkdir()
    expected = "1,099,511,627,776 bytes" if what == "large" else "expected a regular file"
    with pytest.raises(ConfigError, match=expected):
        cli.run(["check", str(runs.tiny(tmp_path)), policy("plain"), f"policy.init_from={file}"])


def test_a_compressed_file_and_tensors_of_other_kinds_are_refused(tmp_path: Path) -> None:
    import torch

    from hpc_es.policies.networks.torch_files import read_weights

    plain, packed = tmp_path / "plain.pt", tmp_path / "packed.pt"
    torch.save({"w": torch.ones(2)}, plain)
    assert list(read_weights(plain, 2)["w"]) == [1, 1]
    with zipfile.ZipFile(plain) as read, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in read.namelist():
            new.writestr(name, read.read(name))
    with pytest.raises(ValueError, match="is compressed"):
        read_weights(packed, 2)
    bits = torch.zeros(2, dtype=torch.uint8)
    others = (
        torch.ones(2) + 1j,
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        bits.view(torch.float8_e4m3fn),
        torch._neg_view(torch.ones(2)),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    )
    for wrong in others:
        torch.save({"w": wrong}, plain)
        with pytest.raises(ValueError, match=r"it names torch|with other arguments"):
            read_weights(plain, 2)
    torch.save({"w": torch.ones(2)}, plain, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match="not a zip file"):
        read_weights(plain, 2)


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def called(name: str, *arguments: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n".encode() + b"(" + b"".join(arguments) + b"tR"


STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\2tQ"
BILLION = b"J\0\xca\x9a\x3b"
TEXT = b"X\4\0\0\0text"
LONG = b"X\0\0\x10\0" + b"a" * (1 << 20)
HOSTILE = {
    "bytes": (called("__builtin__.bytearray", BILLION), "it names __builtin__ bytearray"),
    "storage": (called("torch.FloatStorage", BILLION), "it calls torch FloatStorage"),
    "encode": (called("_codecs.encode", TEXT, TEXT), "it names _codecs encode"),
    "dense": (
        called("torch._utils._rebuild_device_tensor_from_cpu_tensor", STORAGE),
        "it names torch._utils _rebuild_device_tensor_from_cpu_tensor",
    ),
    "one element, 10^9 times": (
        called("torch._utils._rebuild_tensor_v2", STORAGE, b"K\0", b"(" + BILLION + b"t", b"(K\0t"),
        r"a tensor of the shape \[1000000000\], of 2 elements",
    ),
    "outside": (
        called("torch._utils._rebuild_tensor_v2", STORAGE, b"K\1", b"(K\2t", b"(K\1t"),
        "out of bounds",
    ),
    "negative": (
        called(
            *("torch._utils._rebuild_tensor_v2", STORAGE, b"K\0", b"(K\2t", b"(K\1t"),
            *(b"\x89", b"}", b"}X\3\0\0\0neg\x88s"),
        ),
        "with other arguments",
    ),
    # each is the pair of the one before, of which nothing may be printed, hashed or compared
    "nested": (b"}K\0" + b"q\0h\0\x86" * 5000 + b"K\1s", "expected a text, found tuple"),
    "names": (LONG + b"q\0h\0\x93" * 5000, "it names a{100} a{50}"),
    "a call with a tensor": (
        b"ctorch._utils\n_rebuild_parameter\n"
        + called("torch._utils._rebuild_tensor_v2", STORAGE, b"K\0", b"(K\2t", b"(K\1t")
        + b"R",
        "at most 8 arguments",
    ),
    "many arguments": (called("collections.OrderedDict", *[b"N"] * 9), "at most 8 arguments"),
    "place": (b"Nr\xff\xff\xff\x7f", "NoneType"),
    "list": (b"]", "EMPTY_LIST"),
    "cut": (b"", "ValueError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_runs_nothing_and_takes_no_more_memory_than_it_has_bytes(
    name: str, tmp_path: Path
) -> None:
    import torch

    from hpc_es.policies.networks.torch_files import read_weights

    torch.save({"w": torch.ones(2)}, file := tmp_path / "net.pt")
    with zipfile.ZipFile(file) as read:
        content = {part: read.read(part) for part in read.namelist()}
    what, text = HOSTILE[name]
    content["net/data.pkl"] = opcodes(what) if what else content["net/data.pkl"][:-1]
    with zipfile.ZipFile(file, "w") as written:
        for part, data in content.items():
            written.writestr(part, data)
    with time_limit(5), pytest.raises(ValueError, match=text):
        read_weights(file, 2)


def test_tensors_of_all_types_are_read(tmp_path: Path) -> None:
    import torch

    from hpc_es.policies.networks.torch_files import read_weights

    real = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8]
    real += [torch.int8, torch.int16, torch.int32, torch.int64]
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in real}
    shared = torch.arange(12.0).reshape(3, 4)
    tensors |= {"part": shared[1:, ::2], "transposed": shared.T, "number": torch.tensor(2.5)}
    tensors |= {"none": torch.empty(0), "parameter": torch.nn.Parameter(torch.ones(2))}
    torch.save(tensors, file := tmp_path / "net.pt")
    found = read_weights(file, 100)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_what_is_checked_is_what_pytorch_reads(tmp_path: Path) -> None:
    """The first table of contents says that a part is compressed, the second one that it is not."""
    import torch

    from hpc_es.policies.networks.torch_files import read_weights

    torch.save({"w": torch.zeros(10_000)}, plain := tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(plain) as read,
        zipfile.ZipFile(file := tmp_path / "net.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in read.namelist():
            new.writestr(name, read.read(name), zipfile.ZIP_DEFLATED if "data/0" in name else 0)
    data = file.read_bytes()
    end = data.rfind(b"PK\5\6")
    size, start = struct.unpack("<II", data[end + 12 : end + 20])
    table, place = bytearray(data[start : start + size]), 0
    while place < size:
        table[place + 10 : place + 12] = b"\0\0"  # stored
        table[place + 24 : place + 28] = table[place + 20 : place + 24]  # as many bytes
        place += 46 + sum(struct.unpack("<HHH", table[place + 28 : place + 34]))
    file.write_bytes(data[:end] + bytes(table) + data[end:])
    assert torch.load(file, weights_only=True)["w"].shape == (10_000,)
    with pytest.raises(ValueError, match="expected the state_dict of a module"):
        read_weights(file, 10_000)


def test_a_storage_is_made_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    from hpc_es.policies.networks.torch_state_dict import Reader

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    key = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x01t"
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("m/data/0", bytes(4))
        reader = Reader(archive, "m/")
        found = reader.read(b"\x80\x02" + key + b"q\x00" + b"h\x00Q" * 1_000 + b".")
    assert {id(item) for item in reader._stack[1:]} == {id(found)}


def test_weights_are_refused_by_other_policies(tmp_path: Path) -> None:
    (tmp_path / "net.pt").touch()
    with pytest.raises(ConfigError, match=r"kind 'mlp' cannot start from net\.pt: expected a mod"):
        cli.run(["check", str(runs.tiny(tmp_path)), f"policy.init_from={tmp_path / 'net.pt'}"])


def test_video_shows_a_recurrent_module(tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    pytest.importorskip("pygame")
    options = [policy("lstm"), "task={kind: episodes, env_id: CartPole-v1}", "stop.generations=1"]
    runs.here(runs.tiny(tmp_path), tmp_path / "run", options)
    film = tmp_path / "film.gif"
    command = ["eval", str(tmp_path / "run"), "--episodes", "1", "--video", str(film)]
    assert cli.run(command) == 0
    assert film.stat().st_size > 0
