"""The test nodes share neither clock nor /tmp, and no result depends on either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import runs
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import finished, step

pytestmark = pytest.mark.usefixtures("apart")
SKEWED = """
if [ "$(hostname)" = n2 ]; then
    export LD_PRELOAD={library} FAKETIME={skew}
fi
exec "$@"
"""


def test_test_nodes_share_neither_clock_nor_tmp(cluster: Cluster) -> None:
    text = cluster.call(
        "srun",
        "-N2",
        "-n2",
        "sh",
        "-c",
        "touch /tmp/$(hostname); sleep 1; hostname; ls /tmp /dev/shm",
    )
    assert {"n1", "n2"} <= set(text.split()) and text.split().count(
        "n1"
    ) == 2 == text.split().count("n2"), text


@pytest.mark.parametrize("skew", ["-90d", "+5h"])
def test_different_clocks_do_not_change_results(
    skew: str, cluster: Cluster, shared: Path, reference: Path
) -> None:
    run, library = shared / "run", next(Path("/usr").glob("lib*/**/faketime/libfaketime.so.1"))
    wrapper = ["sh", "-c", SKEWED.format(skew=skew, library=library), "sh"]
    finished(step(cluster, 4, runs.command(run, "stop.generations=3"), wrapper=wrapper))
    # now the clock of rank 0 is off
    finished(step(cluster, 2, runs.command(run), "-N1", "-wn2", wrapper=wrapper))
    hours = {line[:13] for line in (run / "log.txt").read_text().splitlines()}
    assert len(hours) > 1, f"the clock of rank 0 was never off: {hours}"
    finished(step(cluster, 4, runs.command(run, "stop.generations=10")))  # and back
    runs.assert_same(run, reference)
