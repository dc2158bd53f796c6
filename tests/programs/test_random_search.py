"""Random search: the distribution of the programs that it draws."""

from __future__ import annotations

from collections import Counter

import pytest

from hpc_es.config.loading import validate
from hpc_es.core.errors import ConfigError
from hpc_es.core.keys import Keys
from hpc_es.programs import random_search
from hpc_es.programs.task import Options, build
from hpc_es.training.build import build_task


def search(length: int = 10) -> random_search.RandomSearch:
    task = build(Options(name="reverse", max_code_length=length))
    return random_search.build(random_search.Options(), task, None, Keys(3), 16)


def test_program_depends_only_on_its_job() -> None:
    whole = search().programs(5, range(200))
    for jobs in (range(1), range(63, 65), range(64, 128), range(10, 200)):
        assert search().programs(5, jobs) == whole[jobs.start : jobs.stop]
    assert len(set(whole)) == 200
    assert not set(whole) & set(search().programs(6, range(200)))


def test_characters_are_uniformly_distributed() -> None:
    """640 programs of 100: each of 8 characters 8,000 times,
    within five standard deviations of 84.
    """
    counts = Counter("".join(search(100).programs(0, range(640))))
    assert sorted(counts) == sorted("><+-[].,")
    assert all(abs(count - 8000) < 420 for count in counts.values())


@pytest.mark.parametrize("kind", ["ga", "random_search"])
def test_program_searches_refuse_other_tasks(kind: str) -> None:
    config = validate({"task": {"env_id": "CartPole-v1"}, "algorithm": {"kind": kind}})
    with pytest.raises(ConfigError, match=r"task\.kind.*expected 'programs'"):
        build_task(config)
