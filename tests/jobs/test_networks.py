"""Runs of custom networks of every kind: bit-identical on any number of ranks and after a kill,
with every command.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed here: make test-jax")
import hpc_es
from hpc_es import cli
from hpc_es.core.errors import ConfigError, UserError
from tests.helpers import runs
from tests.helpers.harness import ROOT, mpiexec
from tests.helpers.own_networks import NAMES

LONG = set(NAMES) - {"recurrent", "keras"}
NORMALISED = "task.observation_normalization={enabled: true, probability: 0.5}"


def policy(name: str) -> str:
    return f"policy={{kind: network, network: 'tests.helpers.own_networks:{name}', candidates_per_call: 3}}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in NAMES]
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
        runs.here(
            config, tmp_path / size, [policy("recurrent"), NORMALISED, f"mpi.chunk_size={size}"]
        )
    assert len({runs.digest(runs.newest(tmp_path / size)) for size in ("1", "5", "auto")}) == 1


def test_loaded_policy_acts_like_the_one_in_training(tmp_path: Path) -> None:
    runs.here(runs.tiny(tmp_path), tmp_path / "run", [policy("recurrent"), NORMALISED])
    loaded = hpc_es.load_policy(tmp_path / "run", "last")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    together = loaded(observations)
    assert together.shape == (5, 2)
    loaded.restart()
    assert loaded(observations[3]).tobytes() == together[3].tobytes()


def test_example_runs_from_another_directory(tmp_path: Path) -> None:
    config = ROOT / "examples" / "own_network_jax" / "cartpole.yaml"
    overrides = ["stop.generations=3", "report.plot_interval_seconds=0"]
    done = mpiexec(
        2, ["-m", "hpc_es.main", str(config), "--output", "run", *overrides], 120.0, cwd=tmp_path
    )
    assert done.status == 0, str(done)
    runs.here(config, tmp_path / "one", overrides)
    assert runs.digest(runs.newest(tmp_path / "run")) == runs.digest(runs.newest(tmp_path / "one"))


# Compilation.

COUNTING = """
import os
import threading
from pathlib import Path

import jax

from tests.helpers.own_networks import plain

CACHE, HERE = "/jax/compilation_cache/cache_", Path(__file__).parent


def count(event, **_):
    if event.startswith(CACHE):
        with (HERE / f"rank_{os.environ['PMI_RANK']}").open("a") as file:
            file.write(event.removeprefix(CACHE) + " ")


def build(observations, outputs):
    jax.monitoring.register_event_listener(count)
    return plain(observations, outputs)


def deadly(observations, outputs):
    init, apply = plain(observations, outputs)

    def kill(parameters, observation):
        if threading.current_thread().name.startswith("compiled calls") and os.environ["PMI_RANK"] == "1":
            (HERE / "killed").touch()
            os.kill(os.getpid(), 9)
        return apply(parameters, observation)

    return init, kill
"""


def counted(directory: Path, network: str, *arguments: str) -> Any:
    """Train on three ranks, which write hits and misses of the
    compilation cache into `rank_0` and so on.
    """
    (directory / "counting.py").write_text(COUNTING)
    return runs.train(
        3, directory / "run", f"policy={{kind: network, network: 'counting:{network}'}}", *arguments
    )


def test_rank_0_compiles_and_the_others_read_its_cache(tmp_path: Path) -> None:
    done = counted(tmp_path, "build", "stop.generations=1")
    assert done.status == 0, str(done)
    first, *others = [(tmp_path / f"rank_{rank}").read_text().split() for rank in range(3)]
    assert first.count("misses") == len(first)
    for events in others:
        assert events.count("hits") == len(first) and "misses" not in events
    folder = tmp_path / "run" / "jax_cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    recorded = runs.newest(tmp_path / "run").provenance["compiled_for"]
    assert (
        recorded["platform"] == recorded["device_kind"] == "cpu"
        and recorded["candidates_per_call"] == 16
    )
    assert "--xla_cpu_multi_thread_eigen=false" in recorded["xla_flags"]


def test_one_rank_compiles_each_call_of_actor_critic_and_the_others_read_its_cache(
    tmp_path: Path,
) -> None:
    """Trajectories of 16 to 64 steps, on any of three ranks: each entry of the cache was missing on
    one rank only.

    Events are counted twice, since the function of the network is called twice.
    """
    algorithm = "algorithm={kind: actor_critic, batch_size: 12}"
    task = "task={kind: episodes, env_id: CartPole-v1, max_episode_steps: 60}"
    done = counted(tmp_path, "build", task, algorithm, "mpi.chunk_size=2", "stop.generations=3")
    assert done.status == 0, str(done)
    events = [(tmp_path / f"rank_{rank}").read_text().split() for rank in range(3)]
    entries = list((tmp_path / "run" / "jax_cache").glob("*/*-cache"))
    assert sum(event.count("misses") for event in events) == 2 * len(entries) > 2
    assert all("hits" in event for event in events[1:])
    assert runs.newest(tmp_path / "run").provenance["compiled_for"]["candidates_per_call"] == 16


def test_death_of_a_rank_while_it_compiles_ends_the_job(tmp_path: Path) -> None:
    done = counted(tmp_path, "deadly")
    assert (tmp_path / "killed").exists()
    assert done.status and not done.timed_out, str(done)


# Compiled episodes.

WALK = """
seed: 1
task: {kind: jax_episodes, env_id: "tests.helpers.jax_walk:walk", lanes: 3, jobs_per_call: 4}
policy: {kind: network, network: "tests.helpers.own_networks:plain"}
algorithm: {kind: es, population_size: 12, sigma: 0.1}
noise: {kind: counter}
evaluation: {interval: 2, episodes: 3}
stop: {generations: 3}
report: {plot_interval_seconds: 0}
"""


def walk(directory: Path) -> Path:
    (directory / "walk.yaml").write_text(WALK)
    return directory / "walk.yaml"


@pytest.mark.parametrize("name", ["plain", "recurrent", "nnx", "keras_recurrent"])
def test_network_acts_in_compiled_episodes(name: str, tmp_path: Path) -> None:
    overrides = [f"policy.network=tests.helpers.own_networks:{name}"]
    runs.here(walk(tmp_path), tmp_path / "run", overrides)
    runs.here(walk(tmp_path), tmp_path / "again", [*overrides, "mpi.chunk_size=5"])
    assert runs.digest(runs.newest(tmp_path / "run")) == runs.digest(
        runs.newest(tmp_path / "again")
    )
    assert runs.status(tmp_path / "run")["failed_episodes"] == 0


def test_memory_is_carried_in_compiled_episodes(tmp_path: Path) -> None:
    """The same parameters give other returns if the memory is forgotten."""
    remembered, forgotten = (
        _walked(tmp_path / name, f"tests.helpers.own_networks:{name}")
        for name in ("recurrent", "forgetful")
    )
    assert remembered != forgotten


def _walked(run: Path, network: str) -> Any:
    run.parent.mkdir(exist_ok=True)
    runs.here(walk(run.parent), run, [f"policy.network={network}", "stop.generations=1"])
    return runs.rows(run)[0]["return_mean"]


def test_options_without_effect_in_compiled_episodes_are_reported(
    tmp_path: Path, capsys: Any
) -> None:
    assert cli.run(["check", str(walk(tmp_path)), "policy.candidates_per_call=5"]) == 0
    text = "policy.candidates_per_call: is 5, but does nothing: the task jax_episodes compiles the policy"
    assert text in capsys.readouterr().out


# Commands.


WRONG = {
    "wide": "expected outputs float32[2] of tests.helpers.own_networks:wide (a Box of 2), found float32[3]",
    "noisy": "two calls of tests.helpers.own_networks:noisy with the same arguments differ",
    "whole": "from tests.helpers.own_networks:whole, found 'w' int64[",
    "mismatched": "apply of tests.helpers.own_networks:mismatched fails for an observation float32[4]: TypeError",
    "failing": "fails for observations float32[4] and 2 outputs: ValueError: no layers",
    "nowhere": "there is no 'nowhere' in tests.helpers.own_networks",
    "unordered": "returns different networks in two calls with the same arguments: the parameter 'w_",
    "nothing_known": "to return a pair (init, apply) of functions",
}


@pytest.mark.parametrize("name", WRONG)
def test_check_reports_wrong_networks(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.run(["check", str(runs.tiny(tmp_path)), policy(name)])
    text = str(refused.value)
    assert "policy.network: " in text and WRONG[name] in text


@pytest.mark.parametrize(
    ("section", "library"),
    [
        ("{kind: network, network: 'tests.helpers.own_networks:plain'}", "jax"),
        ("{kind: cnn, preset: minatar}", "jax"),
        (
            "{kind: network, network: 'tests.helpers.own_networks:keras', backend: tensorflow}",
            "tensorflow",
        ),
    ],
)
def test_check_reports_a_backend_that_is_not_installed(
    section: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else find(name)
    )
    with pytest.raises(ConfigError, match=f"policy.backend: is {library}, which needs"):
        cli.run(["check", str(runs.tiny(tmp_path)), f"policy={section}"])


def test_check_eval_and_init_from(tmp_path: Path, capsys: Any) -> None:
    config, run = runs.tiny(tmp_path), tmp_path / "run"
    assert cli.run(["check", str(config), policy("recurrent"), NORMALISED]) == 0
    runs.here(config, run, [policy("recurrent"), NORMALISED])
    capsys.readouterr()
    import jax

    jax.config.update("jax_compilation_cache_dir", None)
    assert cli.run(["eval", str(run), "--episodes", "3", "--json"]) == 0
    assert Path(jax.config.jax_compilation_cache_dir).resolve().parent == run / "jax_cache"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0
    runs.here(
        config,
        tmp_path / "next",
        [policy("recurrent"), NORMALISED, f"policy.init_from={run}", "stop.generations=0"],
    )
    assert (
        runs.newest(tmp_path / "next").state.theta.tobytes()
        == runs.newest(run).state.theta.tobytes()
    )


def test_repetitions_start_with_different_parameters(tmp_path: Path) -> None:
    options = [policy("keras"), "repetitions=2", "stop.generations=1"]
    runs.finished(0, tmp_path / "run", *options)
    first, second = (runs.newest(tmp_path / "run" / f"repetition_000{index}") for index in range(2))
    assert first.state.theta.tobytes() != second.state.theta.tobytes()
    assert len(first.provenance["sources"]["tests.helpers.own_networks:keras"]) == 64


def test_changed_module_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "examples" / "own_network_jax" / "my_net.py").read_text()
    (tmp_path / "changing_net.py").write_text(source)
    network = "policy={kind: network, network: 'changing_net:build'}"
    runs.finished(0, tmp_path / "run", network, "stop.generations=1")
    (tmp_path / "changing_net.py").write_text(source + "\n# changed\n")
    with pytest.raises(UserError, match="would run 'changing_net:build', whose source"):
        hpc_es.load_policy(tmp_path / "run")
    assert hpc_es.load_policy(tmp_path / "run", trust=True).params > 0


def test_keras_file_is_found_from_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is relative to the config, and its bytes are recorded."""
    config, run = runs.tiny(tmp_path / "config"), tmp_path / "run"
    options = ["policy={kind: network, network: net.keras}", "stop.generations=1"]
    file = tmp_path / "config" / "net.keras"
    keras_model(4).save(file)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    runs.here(config, run, options)
    first = runs.newest(run)
    assert first.provenance["sources"]["net.keras"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert cli.run(["eval", str(run), "--episodes", "3"]) == 0
    assert cli.run(["export", str(run), "policy.keras"]) == 0
    assert hpc_es.load_policy(run).params == first.state.theta.size
    runs.here(config, run, [*options[:1], "stop.generations=2"])
    assert runs.newest(run).state.generation == 2

    keras_model(4).save(file)  # with other weights
    with pytest.raises(UserError, match=r"would run 'net\.keras', whose source has SHA-256"):
        cli.run(["eval", str(run), "--episodes", "3"])
    assert cli.run(["eval", str(run), "--episodes", "3", "--trust"]) == 0
    runs.here(config, run, [*options[:1], "stop.generations=3"])
    assert "net.keras" in (run / "log.txt").read_text()
    file.rename("net.keras")  # into the current directory
    assert cli.run(["eval", str(run), "--episodes", "3", "--trust"]) == 0
    Path("net.keras").unlink()
    with pytest.raises(UserError, match=r"expected the source of 'net\.keras', which"):
        cli.run(["eval", str(run), "--episodes", "3", "--trust"])


def keras_model(inputs: int) -> Any:
    """A Keras model, on the backend that a policy selects."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    return keras.Sequential([keras.layers.Input((inputs,)), keras.layers.Dense(2)])
