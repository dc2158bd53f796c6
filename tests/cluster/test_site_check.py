"""`hpc-es site check` and `hpc-es site init`: measurements by real ranks, verdicts, and detected
values.

On two nodes of a real SLURM: tests/slurm/test_site.py and tests/slurm/test_devices.py.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_es import cli
from hpc_es.cluster import site
from hpc_es.cluster.site import Detected, Nodes, Site, detect, load_site, partitions, profile_text
from hpc_es.cluster.site_check import findings, pairs, table, write_once
from hpc_es.config.yaml_text import parse
from hpc_es.core.errors import UserError
from tests.cluster.test_sbatch import no_profile
from tests.cluster.test_site import profile, shellcheck
from tests.helpers.harness import start

__all__ = ["no_profile", "profile"]


def rank(host: str, local: int, **changes: Any) -> dict[str, Any]:
    """The measurements of a rank with one core of its own and no GPU."""
    own = {
        "host": host,
        "local": local,
        "cores": [local],
        "threads": 1,
        "gpus": [],
        "models": [],
        "startup": 2.0,
    }
    files = {
        "opened": 900,
        "open_seconds": 0.09,
        "sees": True,
        "shared_memory": 1_000_000_000,
        "is_shared": True,
    }
    return {**own, **files, **changes}


GOOD = {
    "mpi": "MPICH 5.0.2",
    "links": {
        "node": {"latency": 1e-6, "bandwidth": 5e9},
        "network": {"latency": 2e-6, "bandwidth": 12e9},
    },
    "clock_offsets": {"n1": 0.0, "n2": -0.002},
    "files": {"fsync": 0.002, "rename": 0.001},
    "ranks": [rank("n1", 0), rank("n1", 1), rank("n2", 0), rank("n2", 1)],
}


def test_good_site_has_only_good_verdicts() -> None:
    lines = findings(GOOD, 4)
    assert {line.verdict for line in lines} == {"ok"}
    values = {line.what: line.value for line in lines}
    assert (
        values["ranks"] == "4: 2 on n1, 2 on n2" and values["threads"] == "1 per rank, on 1 cores"
    )
    assert (
        values["latency between nodes"] == "2.0 us"
        and values["bandwidth between nodes"] == "12.00 GB/s"
    )
    assert values["imports"] == "2.0 s for 4 ranks; then 40,000 opens/s"  # 4 * 900 files in 0.09 s
    assert values["clocks"] == "2.0 ms apart at most"
    assert table(lines, GOOD).endswith(
        "hpc-es plan CONFIG --latency 2e-06 --bandwidth 1.2e+10 --cores-per-node 2\n"
    )


# path of a value and the value: line, verdict, advice
PROBLEMS: dict[str, tuple[str, str, str]] = {
    "links.network.latency=3e-5": ("latency between nodes", "slow", "uses TCP"),
    "links.node.bandwidth=1e9": ("bandwidth within a node", "slow", "shared memory"),
    "clock_offsets.n2=-7.0": ("clocks", "skewed", "files of n2"),
    "files.fsync=0.3": ("writing a checkpoint", "slow", "scratch"),
    "ranks.2.sees=false": ("run directory", "not shared", "file system that all nodes share"),
    "ranks.1.threads=2": ("threads", "shared cores", "n1 has 2 cores"),
    "ranks.3.startup=60.0": ("imports", "slow", "--node-copy"),
    "ranks.0.shared_memory=64000000": ("shared memory", "low", "noise.kind: counter"),
    "ranks.0.is_shared=false": ("shared memory", "none", "noise.kind: counter"),
    "ranks.0.gpus=['0']": ("GPUs", "missing", "--gpus-per-node"),
}


@pytest.mark.parametrize("change", PROBLEMS)
def test_slow_or_missing_resources_have_a_verdict_and_advice(change: str) -> None:
    measured: Any = copy.deepcopy(GOOD)
    path, _, text = change.partition("=")
    *parents, last = path.split(".")
    inner = measured
    for name in parents:
        inner = inner[int(name) if name.isdecimal() else name]
    inner[last] = parse(text)
    what, verdict, advice = PROBLEMS[change]
    (line,) = [line for line in findings(measured, 4) if line.verdict != "ok"]
    assert (line.what, line.verdict) == (what, verdict) and advice in line.advice
    assert f"\n{what}: {line.advice}\n" in table(findings(measured, 4), measured)


def test_each_rank_has_its_gpu_in_the_table() -> None:
    gpus = {"gpus": ["0", "1"], "models": ["A100", "A100"]}
    ranks = [rank(host, local, **gpus) for host in ("n1", "n2") for local in (0, 1)]
    (line,) = [line for line in findings({**GOOD, "ranks": ranks}, 4) if line.what == "GPUs"]
    assert (line.value, line.verdict) == ("0=n1:0 1=n1:1 2=n2:0 3=n2:1 A100", "ok")
    ranks[3]["models"] = ["A100", "H100"]
    (line,) = [line for line in findings({**GOOD, "ranks": ranks}, 4) if line.what == "GPUs"]
    assert (line.value, line.verdict) == ("0=n1:0 1=n1:1 2=n2:0 3=n2:1 A100 H100", "different")


def test_missing_ranks_are_reported() -> None:
    (line,) = [line for line in findings(GOOD, 8) if line.verdict != "ok"]
    assert (line.what, line.verdict) == ("ranks", "not 8") and "mpi_plugin" in line.advice


def test_links_are_measured_within_and_between_nodes() -> None:
    assert pairs(["a", "a", "b", "b"]) == {"node": (0, 1), "network": (0, 2)}
    assert pairs(["a", "b"]) == {"network": (0, 1)} and pairs(["a"]) == {}


def test_ranks_measure_and_rank_0_writes_the_report(tmp_path: Path) -> None:
    with start(
        3, ["-m", "hpc_es.cluster.site_check", "3", "--output", str(tmp_path / "check")]
    ) as job:
        done = job.wait(120)
    assert done.status == 0, str(done)
    measured = json.loads((tmp_path / "check" / "site_check.json").read_text())
    assert len(measured["ranks"]) == 3 and all(
        rank["sees"] and rank["opened"] > 200 for rank in measured["ranks"]
    )
    assert (
        1e-7 < measured["links"]["node"]["latency"] < 1
        and measured["links"]["node"]["bandwidth"] > 1e6
    )
    assert 0 < measured["files"]["fsync"] < 60 and "network" not in measured["links"]
    text = (tmp_path / "check" / "site_check.txt").read_text()
    assert text.startswith("ranks ") and "3: 3 on " in text
    assert sorted(path.name for path in (tmp_path / "check").iterdir()) == [
        "site_check.json",
        "site_check.txt",
    ]


def test_files_of_the_check_replace_no_file_of_a_link(tmp_path: Path) -> None:
    """The directory may be shared: others put links and pipes there."""
    private, file = tmp_path / "private", tmp_path / "shared" / "site_check.tmp"
    private.write_text("keep")
    file.parent.mkdir()
    os.mkfifo(file.with_suffix(".new"))
    for name in ("site_check.tmp", "site_check.txt"):
        (file.parent / name).symlink_to(private)
    write_once(file)
    assert private.read_text() == "keep" and not file.is_symlink()
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "site_check.new",
        "site_check.tmp",
        "site_check.txt",
    ]


def test_script_of_the_check_is_not_requeued(profile: Path, tmp_path: Path, capsys: Any) -> None:
    profile.write_text("gpus_per_node: 4\nscratch: /scratch\ncontainer: [apptainer, exec, x.sif]\n")
    assert cli.run(["site", "check", "--gpus-per-node", "2", "--dry-run", "--", "--qos=debug"]) == 0
    script = capsys.readouterr().out
    assert "set -- 4 /scratch/runs/site_check\n" in script and "requeue " not in script
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --qos=debug"} <= set(
        script.splitlines()
    )
    shellcheck(script, tmp_path)


SINFO = "debug|1|8|(null)|2\nbatch*|2|32|(null)|100\nbatch*|2|48+|(null)|3\ngpu|2|32|gpu:a100:4(S:0-1)|12\n"


def test_partitions_have_the_most_frequent_nodes() -> None:
    assert partitions(SINFO) == {
        "debug": Nodes(8, ""),
        "batch*": Nodes(64, ""),
        "gpu": Nodes(64, "a100:4"),
    }
    assert partitions("") == {} and partitions("x|1+|4|gpu:2|1")["x"] == Nodes(4, "2")


def test_init_writes_detected_values(
    profile: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(
        site, "_output", lambda *command: SINFO if command[0] == "sinfo" else "physics\n"
    )
    monkeypatch.setenv("LOADEDMODULES", "python/3.11:openmpi/4.1")
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.run(["site", "init"]) == 0 and str(profile) in capsys.readouterr().out
    values = {
        "modules": ("python/3.11", "openmpi/4.1"),
        "cores_per_node": 64,
        "gpus_per_node": "a100:4",
    }
    # there is no srun here
    assert load_site(None) == Site(scratch="$SCRATCH", launcher=("mpiexec",), **values)
    text = profile.read_text()
    assert (
        "sinfo lists debug, batch, gpu; the default is batch" in text
        and "your default is physics" in text
    )
    with pytest.raises(UserError, match="exists: remove it, or name another file"):
        cli.run(["site", "init"])


def test_profile_without_values_lists_all_keys_as_comments(
    monkeypatch: Any, tmp_path: Path
) -> None:
    text = profile_text(Detected({}, {}))
    assert yaml.safe_load(text) is None
    keys = [line.partition(":")[0].removeprefix("# ") for line in text.splitlines()]
    assert [key for key in keys if key in Site.__dataclass_fields__] == list(
        Site.__dataclass_fields__
    )
    path = tmp_path / "site.yaml"
    path.write_text(text)
    assert load_site(path) == Site()
    monkeypatch.setattr(site, "_output", lambda *command: "")
    assert "partition" not in detect({}).values


def test_package_of_the_current_directory_is_not_asked_for_the_mpi_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hpc_es").mkdir()
    (tmp_path / "hpc_es" / "__init__.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    detect({})
    assert not (tmp_path / "executed").exists()
