"""Configs are read, overridden, validated completely, resolved and rebuilt."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_es.config import resolved as resolved_module
from hpc_es.config import validation
from hpc_es.config.loading import load, read, table, validate
from hpc_es.config.options import Count, options
from hpc_es.config.options import option as opt
from hpc_es.config.resolved import (
    config_hash,
    dump,
    dump_json,
    identity,
    parse_resolved,
    plain_data,
    resolved,
)
from hpc_es.config.schema import Config
from hpc_es.config.yaml_text import override, parse, read_config, read_yaml
from hpc_es.core.declarations import Needs, Offers
from hpc_es.core.errors import ConfigError
from hpc_es.noise.table import Options as TableOptions
from tests.helpers.time_limit import time_limit

MINIMAL = "task: {env_id: CartPole-v1}\n"


def from_text(tmp_path: Path, text: str, overrides: tuple[str, ...] = ()) -> Config:
    file = tmp_path / "trial.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file, overrides)


def problems(tmp_path: Path, text: str, overrides: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        from_text(tmp_path, text, overrides)
    return list(caught.value.problems)


def minimal(**sections: Any) -> dict[str, Any]:
    return {"task": {"env_id": "CartPole-v1"}, **sections}


# Overrides of a kind.

LEARNING = "algorithm: {population_size: 16, optimizer: {kind: adam, learning_rate: 0.1}}\n"
TABLE = "noise: {table_size: 10_000}\n"


@pytest.mark.parametrize(
    ("text", "override", "note"),
    [
        (
            TABLE,
            "noise.kind=counter",
            "note: noise.kind is counter instead of table: noise.table_size of the file dropped",
        ),
        ("policy: {bias: false}\n", "policy.kind=lstm", "policy.bias of the file dropped"),
        (LEARNING, "algorithm.kind=cma_es", "algorithm.optimizer of the file dropped"),
        (
            TABLE,
            "algorithm.kind=cma_es",
            "noise.kind is counter instead of table: noise.table_size of the file dropped",
        ),
        (TABLE, "noise.kind=table", ""),
    ],
)
def test_override_of_a_kind_drops_the_keys_of_the_old_kind_with_a_note(
    text: str, override: str, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = from_text(tmp_path, MINIMAL + text, (override,))
    section, kind = override.split(".kind=")
    assert getattr(config, section).kind == kind
    stderr = capsys.readouterr().err
    assert note in stderr and bool(stderr) == bool(note)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("noise: {kind: counter, table_size: 10_000}\n", ()),
        ("noise: {kind: counter, table_size: 10_000}\n", ("seed=1",)),
        ("noise: {}\n", ("noise.kind=counter", "noise.table_size=10_000")),
        (TABLE, ("noise.kind=counter", "noise.table_size=10_000")),
        ("", ("noise={kind: counter, table_size: 10_000}",)),
    ],
)
def test_contradictory_kind_and_keys_of_one_source_are_an_error(
    text: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    assert problems(tmp_path, MINIMAL + text, overrides) == [
        ("noise.table_size", "unknown key 'noise.table_size'; it belongs to kind 'table'")
    ]


# Reading.


def test_defaults_are_those_of_the_fields_and_name_and_output_follow_the_file(
    tmp_path: Path,
) -> None:
    config = from_text(tmp_path, MINIMAL)
    assert (config.name, config.output, config.seed) == ("trial", "runs/trial", 0)
    assert (config.task.kind, config.policy.kind, config.algorithm.kind) == (
        "episodes",
        "mlp",
        "es",
    )
    assert config.policy.hidden_dims == (64, 64)
    assert resolved(config)["mpi"] == {
        "chunk_size": "auto",
        "schedule": "on_demand",
        "master_evaluates": "auto",
        "update": "gathered",
        "ranks_per_gpu": 1,
        "fault_tolerance": False,
    }


def test_explicit_name_and_output_are_kept(tmp_path: Path) -> None:
    assert from_text(tmp_path, MINIMAL + "name: a").output == "runs/a"
    config = from_text(tmp_path, MINIMAL + "name: a\noutput: /scratch/b")
    assert (config.name, config.output) == ("a", "/scratch/b")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5E+2", 150.0),
        ("-.5", -0.5),
        ("3", 3),
        ("25_000_000", 25_000_000),
        ("0x1F", 31),
        ("010", "010"),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("2026-01-31", "2026-01-31"),
        ("", None),
        ("null", None),
        ("-.inf", -math.inf),
        ("1e", "1e"),
        ("'1'", "1"),
    ],
)
def test_yaml_scalars_have_the_expected_types(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "a.yaml").write_text(f"a: {text}\n")
    result = read_yaml(tmp_path / "a.yaml")["a"]
    assert result == value
    assert type(result) is type(value)
    assert override({}, [f"a={text}"]) == {"a": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping of keys, such as 'task:', found nothing: the file is empty"),
        (
            "# only a comment\n",
            "expected a mapping of keys, such as 'task:', found nothing: the file is empty",
        ),
        ("- 1\n", "expected a mapping of keys, such as 'task:', found [1]"),
        ("task", "expected a mapping of keys, such as 'task:', found 'task'"),
        (
            "seed: 1\nname: a: b\n",
            "does not parse as YAML: line 2, column 8: mapping values are not allowed here",
        ),
        (
            "seed: 1\nseed: 2\n",
            "does not parse as YAML: line 2, column 1: the key 'seed' stands twice",
        ),
        (
            "a:\n  b: 1\n  b: 1\n",
            "does not parse as YAML: line 3, column 3: the key 'b' stands twice",
        ),
        (
            "1: 2\n",
            "does not parse as YAML: line 1, column 1: expected text as a key, found '1' (try quotes)",
        ),
        ("a: &a [*a]\n", "does not parse as YAML: an alias refers to itself"),
        ("a: " + "[" * 1000, "does not parse as YAML: nested too deeply"),
        (
            "a: !!python/name:os.system\n",
            "does not parse as YAML: line 1, column 4: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system'",
        ),
    ],
)
def test_config_file_without_a_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text) == [(str(tmp_path / "trial.yaml"), message)]


def test_config_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="does not parse as YAML: 'utf-8' codec"):
        read_yaml(tmp_path / "a.yaml")


def test_anchor_may_be_merged_and_its_keys_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert read_yaml(tmp_path / "a.yaml")["b"] == {"x": 1, "y": 3}


def test_missing_config_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "es_cartpole.yaml").touch()
    with pytest.raises(
        ConfigError,
        match=r"expected a YAML file, found no such file; did you mean 'es_cartpole.yaml'\?",
    ):
        read_yaml(tmp_path / "es_cartpol.yaml")
    with pytest.raises(ConfigError, match="expected a YAML file, found a directory"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match=r"expected a YAML file, found no such file$"):
        read_yaml(tmp_path / "none" / "zzz")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("pipe", "found a directory, a pipe or a device"),
        ("device", "found a directory, a pipe or a device"),
        ("circle", "found a link"),
        ("large", "has 1,099,511,627,776 bytes, more than 4,194,304"),
    ],
)
def test_config_that_is_no_file_of_text_is_refused(kind: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "circle":
            path.symlink_to(path)
        case _:
            path.touch()
            os.truncate(path, 1 << 40)
    for function in (read_yaml, read_config):
        with time_limit(20), pytest.raises(ConfigError, match=f"cannot be read: .*{found}"):
            function(path)


# Overrides.


def test_overrides_reach_into_sections_and_leave_their_argument_alone() -> None:
    data = {"algorithm": {"sigma": 0.1}}
    changed = override(
        data,
        ["algorithm.sigma=1e-2", "policy.hidden_dims=[8, 8]", "name=", "task.env_kwargs.a.b='x=y'"],
    )
    assert changed["algorithm"] == {"sigma": 0.01}
    assert changed["policy"] == {"hidden_dims": [8, 8]}
    assert changed["name"] is None
    assert changed["task"] == {"env_kwargs": {"a": {"b": "x=y"}}}
    assert data == {"algorithm": {"sigma": 0.1}}


@pytest.mark.parametrize(
    ("item", "key", "message"),
    [
        ("seed", "seed", "expected key=value, found 'seed'"),
        (
            "=1",
            "",
            "expected key=value with a key such as algorithm.sigma, found an empty key in '=1'",
        ),
        (
            "a..b=1",
            "a..b",
            "expected key=value with a key such as algorithm.sigma, found an empty key in 'a..b=1'",
        ),
        ("seed.a=1", "seed.a", "expected 'seed' to be a mapping, found 3"),
        ("a.b.c=1", "a.b.c", "expected 'a.b' to be a mapping, found null"),
        (
            "name=[1",
            "name",
            "the value '[1' does not parse as YAML: line 1, column 3: "
            "expected ',' or ']', but got '<stream end>' (try quotes)",
        ),
    ],
)
def test_invalid_override_is_refused(item: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override({"seed": 3, "a": {"b": None}}, [item])
    assert caught.value.problems == ((key, message),)


def test_all_wrong_overrides_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        override({}, ["x", "seed=1", "=2"])
    assert [key for key, _ in caught.value.problems] == ["x", ""]


# Validation.

POSITIVE = "expected a number greater than 0, found"
COUNT = "expected a whole number of at least 1"
SEED = "expected a whole number from 0 to below 2**63, found"
ENV_ID = (
    "expected text (Gymnasium id, such as CartPole-v1 or module:Env-v0; old gym ids need the extra gym), "
    "but the key is missing"
)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("algorithm.sigam=1", "unknown key 'algorithm.sigam'; did you mean 'sigma'?"),
        ("algoritm.sigma=1", "unknown key 'algoritm'; did you mean 'algorithm'?"),
        ("sigma=1", "unknown key 'sigma'; did you mean 'algorithm.sigma'?"),
        (
            "report.xyz=1",
            "unknown key 'report.xyz'; valid keys are 'loggers', 'tensorboard', 'tensorboard_directory', 'mlflow', "
            "'wandb', 'metrics_interval', 'columns', 'info', 'plot_interval_seconds', "
            "'export_interval', 'export_numbered'",
        ),
        (
            "algorithm.optimizer.beta=0",
            "unknown key 'algorithm.optimizer.beta'; did you mean 'beta2'?",
        ),
        ("seed=true", f"{SEED} true"),
        ("seed=-1", f"{SEED} -1"),
        ("seed=0.5", f"{SEED} 0.5"),
        ("seed=010", f"{SEED} '010'"),
        ("seed=9223372036854775808", f"{SEED} 9223372036854775808"),
        ("name=''", "expected text, not empty, or null, found ''"),
        ("name=2026", "expected text, not empty, or null, found 2026"),
        ("algorithm.sigma=0", f"{POSITIVE} 0"),
        ("algorithm.sigma='0.1'", f"{POSITIVE} '0.1'; write it without quotes"),
        ("algorithm.sigma=small", f"{POSITIVE} 'small'"),
        ("algorithm.sigma=true", f"{POSITIVE} true"),
        ("algorithm.sigma=.nan", f"{POSITIVE} .nan; a number must be finite"),
        ("algorithm.sigma=.inf", f"{POSITIVE} .inf; a number must be finite"),
        ("algorithm.sigma=", f"{POSITIVE} null"),
        ("algorithm.sigma={a: 1}", f"{POSITIVE} a mapping"),
        ("task.reward_offset=-.inf", "expected a number, found -.inf; a number must be finite"),
        (
            "stop.target_return=.nan",
            "expected a number, or null, found .nan; a number must be finite",
        ),
        ("algorithm.weight_decay=-1", "expected a number of at least 0, found -1"),
        ("algorithm.optimizer.beta1=1", "expected a number from 0 to below 1, found 1"),
        ("task.observation_normalization.probability=2", "expected a number from 0 to 1, found 2"),
        ("algorithm.population_size=0", f"{COUNT}, found 0"),
        ("algorithm.population_size=8.5", f"{COUNT}, found 8.5"),
        ("algorithm.population_size=7", "is 7: mirrored sampling needs an even number (try 8)"),
        ("algorithm.mirrored_sampling=yes", "expected true or false, found 'yes'"),
        (
            "algorithm.mirrored_sampling='true'",
            "expected true or false, found 'true'; write it without quotes",
        ),
        ("policy.action_bins=1", "expected a whole number of at least 2, or null, found 1"),
        (
            "policy.hidden_dims=3",
            f"expected a list (each item: {COUNT.removeprefix('expected ')}), found 3",
        ),
        ("task.env_kwargs=[]", "expected a mapping, found []"),
        (
            "noise.kind=tabel",
            "expected one of 'counter', 'portable', 'table', found 'tabel'; did you mean 'table'?",
        ),
        ("noise.kind=x", "expected one of 'counter', 'portable', 'table', found 'x'"),
        (
            "mpi.master_evaluates=aut",
            "expected 'auto', or true or false, found 'aut'; did you mean 'auto'?",
        ),
        ("mpi.master_evaluates=1", "expected 'auto', or true or false, found 1"),
        ("stop.generations=many", "expected a whole number of at least 0, or null, found 'many'"),
        (
            "noise=",
            "expected a mapping with keys such as 'kind', found null; leave 'noise' out to have its defaults",
        ),
        ("noise=[1]", "expected a mapping with keys such as 'kind', found [1]"),
        ("algorithm.optimizer=adam", "expected a mapping with keys such as 'kind', found 'adam'"),
        ("task=", "expected a mapping with keys such as 'kind', found null"),
        (
            "algorithm=es",
            "expected a mapping with keys such as 'kind', found 'es'; write algorithm.kind: es",
        ),
        ("task={}", ENV_ID),
    ],
)
def test_invalid_value_is_one_readable_error_at_its_key(
    tmp_path: Path, item: str, message: str
) -> None:
    key = {"algoritm.sigma=1": "algoritm", "task={}": "task.env_id"}.get(
        item, item.partition("=")[0]
    )
    assert problems(tmp_path, MINIMAL, (item,)) == [(key, message)]


def test_errors_in_list_items_name_the_item(tmp_path: Path) -> None:
    assert problems(
        tmp_path,
        MINIMAL,
        ("policy.hidden_dims=[0, 8, 1.5]", "task.wrappers=['m:C', 3, {'m:C': 3}]"),
    ) == [
        ("task.wrappers[1]", "expected text, or a mapping (each item: a mapping), found 3"),
        ("task.wrappers[2]", "expected text, or a mapping (each item: a mapping), found a mapping"),
        ("policy.hidden_dims[0]", f"{COUNT}, found 0"),
        ("policy.hidden_dims[2]", f"{COUNT}, found 1.5"),
    ]


def test_unknown_kind_names_the_nearest_and_all_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "algorithms": ("es", "ga"),
        "tasks": ("episodes",),
        "policies": ("mlp",),
        "noise": ("table",),
    }
    monkeypatch.setattr("hpc_es.config.registry.kinds", known.get)
    assert problems(tmp_path, MINIMAL, ("algorithm.kind=ess",)) == [
        ("algorithm.kind", "expected one of 'es', 'ga', found 'ess'; did you mean 'es'?")
    ]


@pytest.mark.parametrize("kind", ["3", "[es]", "null", "__init__"])
def test_invalid_kind_is_refused_with_the_list_of_kinds(tmp_path: Path, kind: str) -> None:
    [(key, message)] = problems(tmp_path, MINIMAL, (f"policy.kind={kind}",))
    assert key == "policy.kind"
    assert "'mlp'" in message


def test_all_wrong_values_of_a_config_are_reported_at_once(tmp_path: Path) -> None:
    text = "seed: x\nsed: 1\ntask: {env: a}\nalgorithm: {population_size: 7, sigma: 0}\n"
    result = problems(tmp_path, text, ("evaluation.interval=0", "mpi.chunk_size=0"))
    assert [key for key, _ in result] == [
        "sed",
        "seed",
        "task.env",
        "task.env_id",
        "algorithm.sigma",
        "mpi.chunk_size",
    ]


def test_then_all_values_that_do_not_fit_each_other_are_reported(tmp_path: Path) -> None:
    text = (
        "task: {env_id: CartPole-v1}\nalgorithm: {population_size: 7}\nstop: {target_return: 1}\n"
    )
    result = problems(tmp_path, text, ("evaluation.interval=0",))
    assert [key for key, _ in result] == ["algorithm.population_size", "stop.target_return"]


def test_cross_field_checks_are_skipped_for_invalid_fields(tmp_path: Path) -> None:
    result = problems(
        tmp_path, MINIMAL, ("algorithm.population_size=7", "algorithm.mirrored_sampling=3")
    )
    assert result == [("algorithm.mirrored_sampling", "expected true or false, found 3")]


def test_cross_field_errors_of_nested_options_have_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_small(self: Any) -> list[tuple[str, str]]:
        return [("table_size", "is too small")] if self.table_size < 5 else []

    monkeypatch.setattr(TableOptions, "problems", too_small, raising=False)
    with pytest.raises(ConfigError) as caught:
        validate(minimal(noise={"table_size": 4}))
    assert caught.value.problems == (("noise.table_size", "is too small"),)


def test_integers_are_accepted_as_floats_and_null_as_no_limit() -> None:
    config = validate(minimal(algorithm={"sigma": 1}, stop={"seconds": None, "target_return": 5}))
    assert isinstance(config.algorithm.sigma, float)
    assert config.stop.seconds is None
    assert config.stop.target_return == 5.0


@options
class Inner:
    """An optional section with lists of several shapes."""

    sizes: tuple[Count, ...] = opt("sizes", (1,))


@options
class Outer:
    """Annotations that no module uses yet."""

    inner: Inner | None = opt("inner", None)
    pair: tuple[int, str] = opt("pair", (1, "a"))


def test_optional_sections_and_pairs_are_validated_and_rebuilt() -> None:
    data = {"inner": {"sizes": [2, 3]}, "pair": [4, "b"]}
    assert validation.validate(Outer, data) == Outer(inner=Inner(sizes=(2, 3)), pair=(4, "b"))
    assert resolved_module._build(Outer, data) == Outer(inner=Inner(sizes=(2, 3)), pair=(4, "b"))
    with pytest.raises(ConfigError) as error:
        validation.validate(Outer, {"inner": {"sizes": [0]}, "pair": [4]})
    assert error.value.problems == (
        ("inner.sizes[0]", f"{COUNT}, found 0"),
        ("pair", "expected a list of 2 (a whole number; text), found [4]"),
    )


# Resolved, and back.


def test_former_keys_of_earlier_checkpoints_are_left_out() -> None:
    config = validate(minimal())
    data = json.loads(dump_json(config))
    data["report"] |= {"rank_logs": True, "profile": False}
    assert parse_resolved(json.dumps(data)) == config


EVERYTHING = {
    "name": "2026-01-31",
    "seed": 2**63 - 1,
    "task": {
        "env_id": "yes",
        "env_kwargs": {
            "a": "1e-3",
            "b": 1e-3,
            "c": [1, [2.0]],
            "d": {"e": None},
            "f": math.inf,
            "g": "ä: #",
        },
        "wrappers": ["m:A", {"m:B": {"x": [1]}}],
        "max_episode_steps": 7,
    },
    "policy": {"hidden_dims": [], "action_bins": 3},
    "algorithm": {"optimizer": {"epsilon": 1e-300, "learning_rate": 0.1 + 0.2}},
    "mpi": {"master_evaluates": False},
}


@pytest.mark.parametrize("data", [minimal(), EVERYTHING])
def test_resolved_configs_survive_a_round_trip(data: dict[str, Any]) -> None:
    config = validate(data)
    again = parse_resolved(dump(config))
    assert again == config
    assert repr(again) == repr(config)  # tuples stay tuples, 1.0 stays 1.0
    assert dump(again) == dump(config)
    assert parse_resolved(dump_json(config)) == config
    assert validate(resolved(config)) == config


def test_resolved_configs_are_plain_complete_and_ordered() -> None:
    plain = resolved(validate(EVERYTHING))
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == [field.name for field in dataclasses.fields(Config)]
    assert plain["policy"]["hidden_dims"] == []
    assert plain["algorithm"]["optimizer"]["beta2"] == 0.999
    assert "hidden_dims: [64, 64]\n" in dump(validate(minimal()))


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "task: {}", "a: [", "{", "task: {kind: episodes, was_once: 1}", "stop: {x: 1}"],
)
def test_damaged_or_invalid_resolved_text_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"expected the text of a resolved config.*another version"
    ):
        parse_resolved(text)


def test_json_config_of_many_keys_is_refused() -> None:
    """Every command that shows it would take a minute."""
    text = json.dumps({"x": dict.fromkeys(map(str, range(200_000)))})
    with pytest.raises(ConfigError, match="has 200,001 keys, more than 200,000"):
        plain_data(text)


@pytest.mark.parametrize("section", ["task", "policy", "algorithm"])
@pytest.mark.parametrize("value", ["true", "5", "text", "[1]"])
def test_plain_data_has_mappings_as_sections(section: str, value: str) -> None:
    """Commands look into them without building a config, also those of somebody else."""
    with pytest.raises(ConfigError, match=f"{section}: expected a mapping, found"):
        plain_data(f"{section}: {value}\n")
    assert plain_data(f"{section}: null\n") == {section: None}


def test_workers_import_neither_pydantic_nor_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump(validate(EVERYTHING)))
    program = (
        "import sys, pathlib, hpc_es.config.resolved as c; c.parse_resolved(pathlib.Path(sys.argv[1]).read_text());"
        "print(*{'pydantic', 'pydantic_core', 'tensorflow', 'mpi4py'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "config.yaml")]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        == "\n"
    )


# Identity.


@pytest.mark.parametrize(
    "item",
    [
        "name=b",
        "output=b",
        "stop.generations=5",
        "evaluation.episodes=5",
        "checkpoint.interval=5",
        "report.tensorboard=true",
        "report.loggers=[mlflow]",
        "mpi.schedule=static",
        "mpi.chunk_size=8",
        "mpi.master_evaluates=true",
        "task.on_failed_episode=abort",
        "task.episode_timeout_seconds=5",
        "policy.init_from=runs/a",
    ],
)
def test_keys_that_a_resume_may_change_are_not_in_the_identity(item: str) -> None:
    before, after = validate(minimal()), validate(override(minimal(), [item]))
    assert before != after
    assert identity(before) == identity(after)
    assert config_hash(before) == config_hash(after)


@pytest.mark.parametrize(
    "item",
    [
        "seed=1",
        "noise={kind: counter}",
        "task.observation_normalization.unit=4",
        "task.env_kwargs.a=1",
        "task.reward_offset=-1",
        "policy.backend=tensorflow",
        "policy.candidates_per_call=8",
        "policy.hidden_dims=[64]",
        "algorithm.sigma=0.1",
        "algorithm.optimizer.beta1=0.8",
    ],
)
def test_keys_that_change_results_are_in_the_identity(item: str) -> None:
    before, after = validate(minimal()), validate(override(minimal(), [item]))
    assert identity(before) != identity(after)
    assert config_hash(before) != config_hash(after)


@pytest.mark.parametrize(
    "item",
    [
        "task.stepping=vector",
        pytest.param("algorithm={kind: actor_critic}", marks=pytest.mark.satellite("actor_critic")),
    ],
)
def test_chunk_options_are_in_the_identity_if_results_depend_on_them(item: str) -> None:
    def of(size: str) -> Any:
        return identity(validate(override(minimal(), [item, f"mpi.chunk_size={size}"])))["mpi"]

    assert of("8") != of("9")
    assert of("auto") == of("16")


def test_hash_is_sha256_of_sorted_compact_json() -> None:
    text = json.dumps(identity(validate(minimal())), sort_keys=True, separators=(",", ":"))
    shell = subprocess.run(["sha256sum"], input=text, check=True, capture_output=True, text=True)
    assert config_hash(validate(minimal())) == shell.stdout.split()[0]


# The table.


def test_key_table_has_every_key_with_range_default_and_help() -> None:
    lines = table().splitlines()
    assert (
        "| `checkpoint.keep_last` | a whole number of at least 1 | `3` | number of newest checkpoints to keep |"
        in lines
    )
    assert (
        "| `report.mlflow.experiment` | text, not empty | `hpc_es` | MLflow experiment of the run |"
        in lines
    )
    assert any(
        line.startswith("| `task.env_id`") and "| text | required |" in line for line in lines
    )
    assert any(line.startswith("| `output`") and r"runs/\<name>" in line for line in lines)
    assert len(lines) == len(set(lines))


def test_key_table_names_the_kinds_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    @options
    class First:
        kind: str = opt("kind", "first")
        shared: Count = opt("in both", 1)
        own: bool = opt("in one", True)

    @options
    class Second:
        kind: str = opt("kind", "second")
        shared: Count = opt("in both", 1)

    classes = {"first": First, "second": Second}
    monkeypatch.setattr("hpc_es.config.registry.kinds", lambda _: ("first", "second"))
    both = {
        "OFFERS": Offers(problems=("vectors",), policy=True),
        "NEEDS": Needs(searches="vectors", policy="first"),
    }
    toys = {kind: SimpleNamespace(Options=cls, **both) for kind, cls in classes.items()}
    monkeypatch.setattr("hpc_es.config.registry.module", lambda _, kind: toys[kind])
    monkeypatch.setattr("hpc_es.config.registry.is_known", lambda _, kind: kind in [*toys])
    lines = table().splitlines()
    assert "| `task.kind` | one of 'first', 'second' | `episodes` | kind of task |" in lines
    assert "| `task.shared` | a whole number of at least 1 | `1` | in both |" in lines
    assert "| `task.own` (first) | true or false | `true` | in one |" in lines
    with pytest.raises(ConfigError, match=r"unknown key 'task\.own'; it belongs to kind 'first'"):
        kinds = {
            "policy": {"kind": "first"},
            "algorithm": {"kind": "first"},
            "noise": {"kind": "first"},
        }
        validate({"task": {"kind": "second", "own": True}, **kinds})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("stop.generations", 1e6, 1_000_000),
        ("stop.timesteps", 2e3, 2000),
        ("mpi.chunk_size", 16.0, 16),
        ("policy.hidden_dims", [16.0, 4], (16, 4)),
        ("algorithm.sigma", 2.0, 2.0),  # a number stays as it is
    ],
)
def test_floats_without_a_fraction_are_accepted_as_integers(
    key: str, value: Any, expected: Any
) -> None:
    result: Any = load_text("task: {env_id: CartPole-v1}\n", [f"{key}={value}"])
    for name in key.split("."):
        result = getattr(result, name)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(expected, tuple):
        assert [type(item) for item in result] == [int] * len(expected)


@pytest.mark.parametrize("value", ["1.5", "1e-3", ".inf", "true", "'1e6'"])
def test_floats_with_a_fraction_are_refused_as_integers(value: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"stop\.generations: expected a whole number of at least 0, or null, found",
    ):
        load_text("task: {env_id: CartPole-v1}\n", [f"stop.generations={value}"])


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("algorithm.optimizer.lr=0.1", "learning_rate"),
        ("task.max_steps=7", "max_episode_steps"),
        ("algorithm.popsize=8", "population_size"),
        ("algorithm.std=8", "sigma"),
        ("policy.hidden_sizes=[8]", "hidden_dims"),
        ("stop.evaluations=8", "episodes"),
        ("stop.timeout=8", "seconds"),
        ("stop.target=8", "target_return"),
    ],
)
def test_names_of_other_libraries_are_suggested(override: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key .*; did you mean {suggestion!r}"):
        load_text("task: {env_id: CartPole-v1}\n", [override])


def load_text(text: str, overrides: list[str]) -> Config:
    return validate(override(parse(text), overrides))


# Dotted keys.

NESTED = {
    "task": {"kind": "function", "function": "math:fsum", "dimension": 2, "arguments": {"a.b": 1}},
    "algorithm": {"kind": "es", "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
    "stop": {"generations": 3, "timesteps": 5},
}
DOTTED = """
task: {kind: function, function: "math:fsum"}
task.dimension: 2
task.arguments: {a.b: 1}
stop.generations: 3
algorithm.optimizer: {kind: sgd}
algorithm: {kind: es, optimizer.learning_rate: 0.5}
stop: {timesteps: 5}
"""


def test_dotted_keys_are_nested_ones(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(DOTTED)
    data = read(tmp_path / "c.yaml")
    assert {name: data[name] for name in NESTED} == NESTED
    expected = validate(NESTED)
    assert validate({name: data[name] for name in NESTED}) == expected
    flat = {
        "task": NESTED["task"],
        "algorithm": NESTED["algorithm"],
        "stop.generations": 3,
        "stop.timesteps": 5,
    }
    assert validate(flat) == expected
    assert (
        validate(
            override(read_config(tmp_path / "c.yaml"), ["stop.generations=4"])
        ).stop.generations
        == 4
    )


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("stop:\n  generations: 3\nstop.generations: 3\n", "stop.generations", "2 and 3"),
        ("stop.generations: 3\nname: x\nstop: 5\n", "stop", "1 and 3"),
        ("stop:\nstop.generations: 3\n", "stop", "1 and 2"),
        ("stop.generations: 3\nstop:\n  generations.x: 3\n", "stop.generations", "1 and 3"),
        (
            "algorithm.optimizer.kind: a\nalgorithm:\n  optimizer:\n    kind: b\n",
            "algorithm.optimizer.kind",
            "1 and 4",
        ),
    ],
)
def test_key_in_two_forms_is_refused_with_both_lines(
    tmp_path: Path, text: str, key: str, lines: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=f"^the key '{key}' stands twice, in lines {lines}: remove one$"
    ):
        read(tmp_path / "c.yaml")


def test_dotted_keys_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "task.env_id: CartPole-v1\nstopp.generations: 3\nstop.generation: 3\na..b: 1\n"
    )
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "c.yaml")
    text = str(error.value)
    assert "unknown key 'stopp'; did you mean 'stop'" in text
    assert "unknown key 'stop.generation'; did you mean 'generations'" in text
    assert "unknown key 'a..b'" in text
