"""Sizes that a config leaves open."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_es.core.declarations import Offers
from hpc_es.core.interfaces import SearchSize
from hpc_es.tasks.jax_episodes.task import Options
from hpc_es.tasks.model import task as model
from hpc_es.training import sizes
from hpc_es.training.sizes import _stored

SMALL, LARGE = 4_481, 133_000  # parameters: 58 and 1 of them fit into a mebibyte


@pytest.mark.parametrize(
    ("given", "search", "lanes", "jobs"),
    [
        ({}, ("cpu", 1024, SMALL), 32, 256),
        ({}, ("cpu", 256, SMALL), 16, 64),  # lanes: a quarter of the episodes of a call
        ({"episodes_per_job": 4}, ("cpu", 128, 500), 32, 32),
        ({"episodes_per_job": 16}, ("cpu", 128, 500), 64, 32),
        ({}, ("cpu", 10_000, LARGE), 16, 256),
        ({}, ("cpu", 8, SMALL), 16, 16),
        ({"jobs_per_call": 4}, ("cpu", 1024, SMALL), 4, None),
        ({"lanes": 5}, ("cpu", 1024, SMALL), None, 256),
        ({}, ("gpu", 1000, SMALL), 1000, 1000),
        ({}, ("gpu", 100_000, SMALL), 4096, 8192),
        ({"platform": "gpu"}, ("cpu", 1000, SMALL), 1000, 1000),
        ({"platform": "cpu"}, ("gpu", 1024, SMALL), 32, 256),
    ],
)
def test_lanes_and_jobs_per_call_follow_from_the_search(
    given: dict[str, Any], search: tuple[Any, int, int], lanes: int | None, jobs: int | None
) -> None:
    options = Options(
        env_id="gymnax:Pendulum-v1", **{"lanes": "auto", "jobs_per_call": "auto", **given}
    )
    expected = {"lanes": lanes, "jobs_per_call": jobs}
    assert options.automatic(SearchSize(*search)) == {
        name: value for name, value in expected.items() if value
    }


@pytest.mark.parametrize(
    ("search", "jobs"),
    [
        (("cpu", 64, 10_200), 64),
        (("cpu", 1000, 10_200), 64),
        (("cpu", 64, 1_002_000), 8),  # 32 MiB are 8.4 candidates
        (("cpu", 64, 10**9), 1),
        (("cpu", 6, 10), 4),
        (("gpu", 4096, 1_002_000), 256),
        (("gpu", 4096, 10), 1024),
    ],
)
def test_candidates_of_a_call_of_a_model_follow_from_their_size(
    search: tuple[Any, int, int], jobs: int
) -> None:
    options = model.Options(model="my_model:make", jobs_per_call="auto")
    assert options.automatic(SearchSize(*search)) == {"jobs_per_call": jobs}
    assert model.Options(model="my_model:make").automatic(SearchSize(*search)) == {}


def test_option_of_a_custom_task_with_that_name_is_its_own_business() -> None:
    setup = SimpleNamespace(offers=Offers(problems=("vectors",)))
    config: Any = SimpleNamespace(
        task=SimpleNamespace(kind="own:Task", automatic=True), setup=setup
    )
    built: Any = None
    assert sizes.with_sizes(config, built) == (config, None, {})


def test_numbers_stay_as_they_are() -> None:
    assert Options(env_id="gymnax:Pendulum-v1").automatic(SearchSize("cpu", 1024, SMALL)) == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (
            "task: {kind: jax_episodes, lanes: 8, jobs_per_call: 12, env_id: a}",
            {"lanes": 8, "jobs_per_call": 12},
        ),
        ("task: {kind: episodes, lanes: 8}", {}),
        ("task: 3", {}),
        ("task: {kind: jax_episodes, lanes: auto}", {}),
        ("{", {}),
    ],
    ids=["numbers", "another kind", "no section", "auto", "damaged"],
)
def test_a_run_keeps_the_numbers_of_its_config(
    tmp_path: Path, text: str, numbers: dict[str, int]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert _stored(tmp_path, "jax_episodes") == numbers
    assert _stored(tmp_path / "missing", "jax_episodes") == {}
