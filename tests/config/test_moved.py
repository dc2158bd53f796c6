"""Keys at the places that they had in an earlier version are taken to the new ones, in every text that has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_es.config import moved as moves
from hpc_es.config.loading import load, validate
from hpc_es.config.moved import moved, overridden, renamed
from hpc_es.config.resolved import completed, config_hash, dump, dump_json, identity, parse_resolved, resolved
from hpc_es.config.schema import Config
from hpc_es.core.errors import ConfigError

TABLE = {"mpi.optimizer": "algorithm.optimizer"}
NOTICE = "mpi.optimizer is now algorithm.optimizer: taken from the old place"
OLD = {"task": {"env_id": "CartPole-v1"}, "mpi": {"optimizer": {"kind": "adam", "learning_rate": 0.25}}}
NEW = {"task": {"env_id": "CartPole-v1"}, "algorithm": {"optimizer": {"kind": "adam", "learning_rate": 0.25}}}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An earlier version had the optimizer in the section mpi."""
    monkeypatch.setattr(moves, "MOVED", TABLE)
    moves.tell.cache_clear()
    yield
    moves.tell.cache_clear()


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy in which these dotted keys are not."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for key in keys:
        *path, last = key.split(".")
        inner = copy
        for name in path:
            inner = inner[name]
        del inner[last]
    return copy


def of_old_version(data: dict[str, Any]) -> dict[str, Any]:
    """Resolved data or an identity as that version wrote it: the optimizer at its place, and two keys not known yet."""
    old = without(data, "algorithm.optimizer", "algorithm.weight_decay", "policy.activation")
    return {**old, "mpi": {**old["mpi"], "optimizer": data["algorithm"]["optimizer"]}}


def test_every_entry_leads_to_another_section_that_is_there() -> None:
    names = Config.__dataclass_fields__  # type: ignore[attr-defined]
    assert all(key.partition(".")[0] in names for entry in moves.MOVED.items() for key in entry)
    assert all(old != new for old, new in moves.MOVED.items())


def test_a_section_moves_as_a_whole_with_one_notice() -> None:
    assert moved(Config, OLD, TABLE) == ({**NEW, "mpi": {}}, [NOTICE])
    assert OLD["mpi"] != {}
    assert moved(Config, NEW, TABLE) == (NEW, [])


def test_both_places_at_once_are_refused_with_both_names() -> None:
    with pytest.raises(ConfigError, match=r"is now algorithm\.optimizer, .* remove 'mpi\.optimizer'") as error:
        moved(Config, {**OLD, **NEW}, TABLE)
    assert error.value.problems[0][0] == "mpi.optimizer"


@pytest.mark.parametrize(
    ("data", "table"),
    [
        ({"algorithm": {"optimizer": {}}}, {"algorithm.optimizer": "mpi.chunk_size"}),  # es has such an option
        ({"mpi": {"optimizer": {}}, "algorithm": {"kind": "ga"}}, TABLE),  # ga has no optimizer
        ({"mpi": {"optimizer": {}}, "algorithm": {"kind": "no_such"}}, TABLE),
        ({"mpi": 3, "algorithm": []}, TABLE),
    ],
)
def test_what_the_old_section_knows_or_the_new_one_does_not_stays(data: dict[str, Any], table: dict[str, str]) -> None:
    assert moved(Config, data, table) == (data, [])
    assert overridden(Config, data, ["seed=1"], table) == ({**data, "seed": 1}, [])


def test_the_kind_that_an_override_chooses_decides() -> None:
    data, notices = overridden(Config, {"algorithm": {"kind": "ga"}, **OLD}, ["algorithm.kind=es"], TABLE)
    assert (data["algorithm"]["optimizer"]["learning_rate"], notices) == (0.25, [NOTICE])
    assert overridden(Config, OLD, ["algorithm.kind=ga"], TABLE)[0]["mpi"] == OLD["mpi"]


@pytest.mark.parametrize(
    ("data", "items", "optimizer"),
    [
        (OLD, ["algorithm.optimizer.learning_rate=0.5"], {"kind": "adam", "learning_rate": 0.5}),
        (NEW, ["mpi.optimizer.learning_rate=0.5"], {"kind": "adam", "learning_rate": 0.5}),
        (NEW, ["mpi.optimizer={kind: sgd}"], {"kind": "sgd"}),
        (NEW, ["mpi={optimizer: {kind: sgd}}"], {"kind": "sgd"}),
        (OLD, ["algorithm={sigma: 0.5}"], {"kind": "adam", "learning_rate": 0.25}),  # which says nothing of it
        (NEW, ["mpi.optimizer.kind=sgd", "algorithm.optimizer.kind=adam"], {"kind": "adam", "learning_rate": 0.25}),
    ],
)
def test_files_and_overrides_meet_at_the_new_place(data: Any, items: list[str], optimizer: dict[str, Any]) -> None:
    changed, notices = overridden(Config, data, items, TABLE)
    assert changed["algorithm"]["optimizer"] == optimizer
    assert "optimizer" not in changed.get("mpi", {})
    assert notices == [NOTICE]


def test_a_replaced_section_of_the_new_version_is_replaced() -> None:
    assert overridden(Config, NEW, ["algorithm={sigma: 0.5}"], TABLE) == (
        {**NEW, "algorithm": {"sigma": 0.5}},
        [],
    )


def test_names_within_the_section_follow() -> None:
    assert renamed("mpi.optimizer.kind", TABLE) == "algorithm.optimizer.kind"
    assert renamed("mpi.optimizers", TABLE) == "mpi.optimizers"


def test_a_file_is_told_of_once_and_a_mistake_in_it_by_its_new_name(table: None, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(OLD))
    for _ in range(2):
        assert load(path, ["mpi.optimizer.momentum=0.5"]).algorithm.optimizer.learning_rate == 0.25
    assert capsys.readouterr().err == f"NOTICE: {NOTICE}\n"
    with pytest.raises(ConfigError, match=r"algorithm\.optimizer\.kind: expected one of"):
        load(path, ["mpi.optimizer.kind=nonsense"])


def test_a_mapping_is_taken_too(table: None, capsys: Any) -> None:
    assert validate(OLD) == validate(NEW)
    assert NOTICE in capsys.readouterr().err


@pytest.mark.parametrize("write", [dump, dump_json])
def test_the_resolved_text_of_an_earlier_version_is_rebuilt(table: None, write: Any) -> None:
    config = validate(NEW)
    text = write(config)
    old = json.dumps(of_old_version(resolved(config)))
    assert old != text
    assert parse_resolved(old) == config


def test_an_identity_is_completed_with_defaults_and_moves(table: None) -> None:
    config = validate({**NEW, "seed": 3})
    rest = {"blas_threads": 2, "repetition": 5}
    old = {**of_old_version(identity(config)), **rest}
    assert completed(old) == {**identity(config), **rest}
    changed = validate({**NEW, "seed": 3, "policy": {"activation": "relu"}})
    assert completed(old) != {**identity(changed), **rest}
    assert config_hash(config) != config_hash(changed)


@pytest.mark.parametrize("old", [{"task": {"kind": "gone", "a": 1}}, {"seed": 1}, {"task": 3, "x": [1]}])
def test_an_identity_that_cannot_be_completed_is_as_it_was(old: dict[str, Any]) -> None:
    assert completed(old) == old


# Options that kinds have no more.


@pytest.mark.parametrize(
    ("noise", "items", "left"),
    [
        ({"kind": "counter", "table_size": 5}, [], {"kind": "counter"}),
        ({"table_size": 5}, ["noise.kind=counter"], {"kind": "counter"}),
        ({"kind": "counter"}, ["noise.table_size=5"], {"kind": "counter"}),
    ],
)
def test_a_table_size_without_a_table_is_left_out(noise: Any, items: list[str], left: Any) -> None:
    assert overridden(Config, {"noise": noise}, items) == (
        {"noise": left},
        ["noise.table_size is no option of this kind: left out"],
    )


def test_a_table_keeps_its_size() -> None:
    data = {"noise": {"kind": "counter", "table_size": 5}}
    assert overridden(Config, data, ["noise.kind=table"]) == ({"noise": {"kind": "table", "table_size": 5}}, [])


def test_an_identity_of_the_first_version_had_a_table_size_of_any_noise() -> None:
    now = identity(validate({**NEW, "noise": {"kind": "counter"}}))
    assert now["noise"] == {"kind": "counter"}
    assert completed({**now, "noise": {"kind": "counter", "table_size": 25_000_000}}) == now
