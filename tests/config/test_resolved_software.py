"""Runs that go on with other software."""

from __future__ import annotations

from typing import Any

from hpc_es.config.resolved import software_changes, software_warning, with_history
from hpc_es.core.machine import as_comment


def provenance(processor: str = "A", **versions: str) -> dict[str, Any]:
    return {
        "versions": {"hpc_es": "0.2.0", "python": "3.12.1", **versions},
        "processor": processor,
        "mpi": "MPICH 5",
    }


def test_same_software_is_not_mentioned() -> None:
    before = provenance(numpy="2.4.0", mpi4py="4.1")
    now = {**provenance(numpy="2.4.0", mpi4py="4.2"), "mpi": "none", "ranks": 3}
    assert software_warning(before, now) is None
    assert with_history(now, before) == now
    assert software_warning({}, now) is None  # of a version that recorded nothing


def test_changes_are_named_once_and_kept() -> None:
    first, second = provenance(numpy="2.4.0"), provenance("B", numpy="2.5.0", jax="0.10")
    assert software_changes(first, second) == {
        "numpy": ("2.4.0", "2.5.0"),
        "processor": ("A", "B"),
    }
    warning = software_warning(first, second)
    assert warning is not None
    assert "continues with numpy 2.4.0 -> 2.5.0, processor A -> B: from here on" in warning
    kept = with_history(second, first)
    assert kept["earlier_software"] == [{"numpy": "2.4.0", "processor": "A"}]
    assert software_warning(kept, second) is None
    third = with_history(provenance("A", numpy="2.5.0", jax="0.10"), kept)
    assert third["earlier_software"] == [*kept["earlier_software"], {"processor": "B"}]


def test_earlier_software_is_a_line_of_the_config_of_a_run() -> None:
    """The report lists the lines."""
    provenance = {
        "versions": {"numpy": "2.4"},
        "earlier_software": [{"numpy": "2.0", "hpc_es": "0.1"}, {"numpy": "2.2"}],
    }
    assert as_comment(provenance).splitlines()[1:] == [
        "# made with:",
        "#   numpy: 2.4",
        "#   earlier_software: numpy 2.0, hpc_es 0.1; numpy 2.2",
    ]


def test_comment_shows_groups_of_values_as_text() -> None:
    info = {
        "device": {"library": None, "kind": "cpu"},
        "sources": {},
        "import_paths": ["/a", "/b"],
        "size": 2,
    }
    assert as_comment(info).splitlines()[2:] == [
        "#   device: kind cpu",
        "#   sources: none",
        "#   import_paths: /a; /b",
        "#   size: 2",
    ]
