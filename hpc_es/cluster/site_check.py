"""The job of `hpc-es site check`: every rank measures, and rank 0 writes a table.

    srun ... python -m hpc_es.cluster.site_check NAME --output DIRECTORY

The table has verdicts and settings.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hpc_es.core.data import JsonObject
from hpc_es.core.errors import ConfigError, UserError
from hpc_es.core.machine import AVAILABLE_CORES, blas_threads, processor_model
from hpc_es.core.run_files import make_directory, open_file, own_directory, remove
from hpc_es.devices.placement import RankGpus, assign, describe, driver_gpus, visible_gpus
from hpc_es.mpi.connect import connect
from hpc_es.mpi.world import World
from hpc_es.storage.files import write_json, write_text

FILE = "site_check"  # stem of the report's files
# as in training
IMPORTS = ("hpc_es.training.run", "hpc_es.tasks.episodes.task", "hpc_es.algorithms.es")
TAG = 77
SMALL, LARGE = 8, 16 * 2**20  # bytes of messages
ROUNDS, LARGE_ROUNDS, CLOCK_ROUNDS = 200, 6, 50
WRITES = 20
VISIBLE_SECONDS = 10.0  # wait for a file of rank 0 to be seen by all ranks

# Limits beyond which a verdict is "slow" or "low".
MOST_LATENCY = {"node": 10e-6, "network": 20e-6}  # seconds; Python takes a few microseconds
LEAST_BANDWIDTH = {"node": 2e9, "network": 1e9}  # bytes per second
MOST_FSYNC, MOST_RENAME = 0.1, 0.05  # seconds
MOST_STARTUP = 20.0  # seconds
LEAST_SHARED_MEMORY = 256e6  # bytes
MOST_SKEW = 1.0  # seconds


@dataclass(frozen=True)
class Finding:
    """A line of the table; `advice` says what to change if the verdict is not "ok"."""

    what: str
    value: str
    verdict: str = "ok"
    advice: str = ""


# Measurements.


def measure(world: World, directory: Path) -> JsonObject:
    """Return all measurements; complete on rank 0 only. Every rank calls this."""
    startup = seconds_since_start()
    links = {}
    for name, pair in pairs(world.hosts).items():
        latency = ping_pong(world, pair, SMALL, ROUNDS)
        links[name] = {
            "latency": latency,
            "bandwidth": LARGE / ping_pong(world, pair, LARGE, LARGE_ROUNDS),
        }
    skews = {
        host: clock_offset(world, world.hosts.index(host)) for host in dict.fromkeys(world.hosts)
    }
    files, sees = file_system(world, directory)
    opened, seconds = open_modules(world)
    usage = os.statvfs("/dev/shm")  # noqa: S108
    shared = world.shared_array("site check", 1_000_000)
    is_shared = world.size == 1 or world.filling(shared)[1] == world.node_size
    gpus = visible_gpus(os.environ)
    own: JsonObject = {
        **{
            "host": world.host,
            "local": world.node_rank,
            "cores": list(AVAILABLE_CORES),
            "threads": blas_threads(),
        },
        **{
            "gpus": list(gpus.names),
            "models": [describe(n, gpus.source, driver_gpus()).model for n in gpus.names],
        },
        **{"startup": startup, "opened": opened, "open_seconds": seconds, "sees": sees},
        **{
            "shared_memory": usage.f_bavail * usage.f_frsize,
            "is_shared": is_shared,
            "processor": processor_model(),
        },
    }
    gathered = world.gather(np.frombuffer(json.dumps(own).encode(), np.uint8)) or []
    ranks = [json.loads(bytes(coded).decode()) for coded in gathered]
    return {
        "mpi": world.library,
        "links": links,
        "clock_offsets": skews,
        "files": files,
        "ranks": ranks,
    }


def seconds_since_start() -> float:
    """Return the age of this process: the time that its imports and the start of MPI have taken."""
    names = ("self/stat", "uptime")
    stat, uptime = (
        Path("/proc", name).read_text(encoding="utf-8", errors="replace") for name in names
    )
    ticks = int(stat.rpartition(")")[2].split()[19])
    return float(uptime.split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def pairs(hosts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return rank 0 and the first other rank on its node, and on another node.

    The pairs are "node" and "network", as far as there are such ranks.
    """
    others = range(1, len(hosts))
    near = next((rank for rank in others if hosts[rank] == hosts[0]), None)
    far = next((rank for rank in others if hosts[rank] != hosts[0]), None)
    others_of = {"node": near, "network": far}
    return {name: (0, rank) for name, rank in others_of.items() if rank is not None}


def ping_pong(world: World, pair: tuple[int, int], size: int, rounds: int) -> float:
    """Return the time in seconds of a message from one rank of the pair to the other.

    NaN on other ranks. A tenth of the messages are faster: other processes may delay the rest.
    """
    world.barrier()
    times = [math.nan]
    if world.rank in pair:
        assert world.comms
        other, message = (
            pair[world.rank == pair[0]],
            [np.zeros(size, np.uint8), world.comms.mpi.BYTE],
        )
        send, receive = world.comms.messages.Isend, world.comms.messages.Irecv
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            for operation in (send, receive) if world.rank == pair[0] else (receive, send):
                world.wait(operation(message, other, TAG))
            times.append((time.perf_counter() - start) / 2)
    world.barrier()
    return float(np.quantile(times, 0.1))


def clock_offset(world: World, other: int) -> float:
    """Return the difference of the clock of a rank and that of rank 0 in seconds.

    It is on rank 0; 0 on other ranks. The answer of the shortest round trip counts, and the clock
    is assumed to be read in its middle.
    """
    world.barrier()
    samples = [(0.0, 0.0)]
    if other and world.rank in (0, other):
        samples = []
        for _ in range(CLOCK_ROUNDS):
            start = time.time()
            if world.rank == 0:
                world.send(other, TAG, [0])
                clock = int(world.receive(other, TAG)[0]) * 1e-9
                end = time.time()
                samples.append((end - start, clock - (start + end) / 2))
            else:
                world.receive(0, TAG)
                world.send(0, TAG, [time.time_ns()])
                samples.append((0.0, 0.0))
    world.barrier()
    return min(samples)[1]


def file_system(world: World, directory: Path) -> tuple[dict[str, float], bool]:
    """Return the times of fsync and rename, and whether this rank sees rank 0's file.

    Times are medians in seconds, measured on rank 0.
    """
    fsync, rename = [math.nan], [math.nan]
    path = directory / f"{FILE}.tmp"
    if world.rank == 0:
        make_directory(directory)
        fsync, rename = map(list, zip(*(write_once(path) for _ in range(WRITES)), strict=True))
    world.barrier()
    start, sees = time.monotonic(), path.exists()
    while not sees and time.monotonic() - start < VISIBLE_SECONDS:
        time.sleep(0.1)
        sees = path.exists()
    world.barrier()
    if world.rank == 0:
        remove(path)
    return {"fsync": statistics.median(fsync), "rename": statistics.median(rename)}, sees


def write_once(path: Path) -> tuple[float, float]:
    """Write 64 kB to a file and rename it; return the seconds of fsync and of the rename.

    Others may write in the directory, and put a link or a pipe there.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with own_directory(path) as place:
        try:
            with open_file(new, "wb") as stream:
                stream.write(bytes(65536))
                stream.flush()
                start = time.perf_counter()
                os.fsync(stream.fileno())
                fsync = time.perf_counter() - start
            start = time.perf_counter()
            os.replace(new.name, path.name, src_dir_fd=place, dst_dir_fd=place)
            return fsync, time.perf_counter() - start
        finally:
            remove(new)


def open_modules(world: World) -> tuple[int, float]:
    """Open the files of all imported modules on all ranks at the same time.

    Returns:
        Their number and the seconds.
    """
    paths = sorted(
        {
            Path(file)
            for module in list(sys.modules.values())
            if (file := getattr(module, "__file__", None))
        }
    )
    world.barrier()
    start = time.perf_counter()
    for path in paths:
        with path.open("rb") as stream:
            stream.read(1)
    seconds = time.perf_counter() - start
    world.barrier()
    return len(paths), seconds


# Verdicts.


def findings(measured: JsonObject, expected_ranks: int) -> list[Finding]:
    """Return the table of a measurement of a job that requested this number of ranks."""
    ranks = measured["ranks"]
    return [
        _ranks(ranks, expected_ranks),
        Finding("MPI library", measured["mpi"]),
        *(line for name, link in measured["links"].items() for line in _link(name, link)),
        _threads(ranks),
        _gpus(ranks),
        *_files(measured["files"], ranks),
        _startup(ranks),
        _shared_memory(ranks),
        _clocks(measured["clock_offsets"]),
    ]


def _ranks(ranks: Sequence[JsonObject], expected: int) -> Finding:
    hosts = Counter(rank["host"] for rank in ranks)
    value = f"{len(ranks)}: " + ", ".join(f"{count} on {host}" for host, count in hosts.items())
    return (
        Finding("ranks", value)
        if len(ranks) == expected
        else Finding(
            "ranks",
            value,
            f"not {expected}",
            "start the ranks with the launcher of the MPI library: see launcher and mpi_plugin in "
            "the site profile",
        )
    )


def _link(name: str, link: Mapping[str, float]) -> list[Finding]:
    where = {"node": "within a node", "network": "between nodes"}[name]
    advice = {
        "node": "the node is busy, or the MPI library does not use shared memory: use that of the site (modules)",
        "network": "the nodes are busy, or the MPI library uses TCP: use that of the site (modules)",
    }[name]
    is_slow = link["latency"] > MOST_LATENCY[name], link["bandwidth"] < LEAST_BANDWIDTH[name]
    values = (f"{link['latency'] * 1e6:.1f} us", f"{link['bandwidth'] / 1e9:.2f} GB/s")
    return [
        Finding(f"{what} {where}", value, *(("slow", advice) if slow else ()))
        for what, value, slow in zip(("latency", "bandwidth"), values, is_slow, strict=True)
    ]


def _threads(ranks: Sequence[JsonObject]) -> Finding:
    """Return the threads per rank.

    Ranks of a node that share their cores must have enough of them.
    """
    threads = sorted({rank["threads"] for rank in ranks})
    cores = sorted({len(rank["cores"]) for rank in ranks})
    value = f"{_range(threads)} per rank, on {_range(cores)} cores"
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        here = [rank for rank in ranks if rank["host"] == host]
        available = len({core for rank in here for core in rank["cores"]})
        if sum(rank["threads"] for rank in here) > available:
            return Finding(
                "threads",
                value,
                "shared cores",
                f"{host} has {available} cores for these ranks: check --cpus-per-task and the "
                "binding of cores",
            )
    return Finding("threads", value)


def _gpus(ranks: Sequence[JsonObject]) -> Finding:
    if not any(rank["gpus"] for rank in ranks):
        return Finding("GPUs", "none requested")
    blind = [str(number) for number, rank in enumerate(ranks) if not rank["gpus"]]
    if blind:
        return Finding(
            "GPUs",
            f"none on rank {', '.join(blind)}",
            "missing",
            "request GPUs on every node: --gpus-per-node, or gpus_per_node in the site profile",
        )
    try:
        chosen = assign(
            [
                RankGpus(rank["host"], rank["host"], rank["local"], tuple(rank["gpus"]))
                for rank in ranks
            ]
        )
    except ConfigError as error:
        return Finding("GPUs", "shared by ranks", "too few", str(error))
    names = [
        f"{number}={rank['host']}:{rank['gpus'][i]}"
        for number, (rank, i) in enumerate(zip(ranks, chosen, strict=True))
    ]
    models = sorted({rank["models"][i] for rank, i in zip(ranks, chosen, strict=True)} - {""})
    value = " ".join([*names[:8], *(["..."] if len(names) > 8 else []), *models])
    if len(models) > 1:
        return Finding(
            "GPUs", value, "different", "request GPUs of one model, such as --gpus-per-node a100:4"
        )
    return Finding("GPUs", value)


def _files(files: JsonObject, ranks: Sequence[JsonObject]) -> list[Finding]:
    blind = sorted({rank["host"] for rank in ranks if not rank["sees"]})
    value, shared = (
        f"seen by all ranks within {VISIBLE_SECONDS:g} s",
        Finding("run directory", "seen by all ranks"),
    )
    if blind:
        advice = "use a directory on a file system that all nodes share: scratch in the site profile, or --output"
        shared = Finding("run directory", f"not {value}: {', '.join(blind)}", "not shared", advice)
    advice = "put run directories on a faster file system: scratch in the site profile"
    is_slow = files["fsync"] > MOST_FSYNC or files["rename"] > MOST_RENAME
    return [
        shared,
        Finding(
            "writing a checkpoint",
            f"fsync {files['fsync'] * 1e3:.2f} ms, rename {files['rename'] * 1e3:.2f} ms",
            *(("slow", advice) if is_slow else ()),
        ),
    ]


def _startup(ranks: Sequence[JsonObject]) -> Finding:
    slowest = max(rank["startup"] for rank in ranks)
    rate = sum(rank["opened"] for rank in ranks) / max(rank["open_seconds"] for rank in ranks)
    value = f"{slowest:.1f} s for {len(ranks)} ranks; then {rate:,.0f} opens/s"
    if slowest > MOST_STARTUP:
        return Finding(
            "imports",
            value,
            "slow",
            "use --node-copy, or a container: both read one large file per node",
        )
    return Finding("imports", value)


def _shared_memory(ranks: Sequence[JsonObject]) -> Finding:
    least = min(rank["shared_memory"] for rank in ranks)
    value = f"{least / 1e6:,.0f} MB free in /dev/shm"
    advice = "set noise.kind: counter, or a smaller noise.table_size"
    if not all(rank["is_shared"] for rank in ranks):
        return Finding("shared memory", f"{value}, which MPI cannot use", "none", advice)
    return Finding(
        "shared memory", value, *(("low", advice) if least < LEAST_SHARED_MEMORY else ())
    )


def _clocks(offsets: Mapping[str, float]) -> Finding:
    host, skew = max(offsets.items(), key=lambda item: abs(item[1]))
    value = f"{abs(skew) * 1e3:.1f} ms apart at most"
    if abs(skew) <= MOST_SKEW:
        return Finding("clocks", value)
    return Finding(
        "clocks",
        value,
        "skewed",
        f"report it to the administrators: the times in logs and status files of {host} are wrong",
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def table(lines: Sequence[Finding], measured: JsonObject) -> str:
    """Return the table as text, followed by suggested settings."""
    width, values = (
        max(len(text) for text in column)
        for column in zip(*((f.what, f.value) for f in lines), strict=True)
    )
    rows = [f"{f.what:{width}}  {f.value:{values}}  {f.verdict}".rstrip() for f in lines]
    advice = [f"{f.what}: {f.advice}" for f in lines if f.advice]
    if "network" in measured["links"]:
        link, host = measured["links"]["network"], measured["ranks"][0]["host"]
        per_node = sum(rank["host"] == host for rank in measured["ranks"])
        advice.append(
            "constants of this cluster for predictions: hpc-es plan CONFIG --latency "
            f"{link['latency']:.2g} --bandwidth {link['bandwidth']:.2g} "
            f"--cores-per-node {per_node}"
        )
    return "\n".join([*rows, "", *advice, ""]) if advice else "\n".join([*rows, ""])


def main() -> None:
    """Measure on all ranks, and write the report on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, help="number of ranks that the job requested")
    parser.add_argument("--output", type=Path, required=True, help="directory of the report")
    arguments = parser.parse_args()
    for module in IMPORTS:
        importlib.import_module(module)
    try:
        world = connect()
    except UserError as error:
        sys.stderr.write(f"hpc-es: {error}\n")
        sys.exit(error.status)
    measured = measure(world, arguments.output)
    if world.rank == 0:
        lines = findings(measured, arguments.ranks)
        write_json(
            arguments.output / f"{FILE}.json",
            {**measured, "findings": [asdict(line) for line in lines]},
        )
        write_text(arguments.output / f"{FILE}.txt", table(lines, measured))
    world.finalize()


if __name__ == "__main__":
    main()
