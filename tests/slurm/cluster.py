"""A SLURM cluster of two nodes on this machine, for as long as it is used: real daemons, free
ports, no system files.

    with running() as cluster:
        cluster.call("srun", "--mpi=pmi2", "-N2", "-n4", ...)

    python -m tests.slurm.cluster -- COMMAND ...      # or without a command: a shell

As root each node has its own host name, /tmp and /dev/shm, like a real node; shared files are below
`cluster.shared`. Nothing is left behind, see reap.py.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.harness import ROOT, clean_environment
from tests.slurm.install import PATH

NODES = ("n1", "n2")
START_SECONDS = 120.0  # on a loaded machine; else 3
CONF = """
ClusterName=hpc_es
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
PlugStackConfig={directory}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
ReturnToService=2
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{gres_types}
NodeName=n1 NodeHostname={names[0]} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 {gres}
NodeName=n2 NodeHostname={names[1]} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 {gres}
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=30
PartitionName=cut Nodes=n1,n2 MaxTime=INFINITE PriorityTier=1 GraceTime=30 PreemptMode=CANCEL
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""


@dataclass
class Cluster:
    """A cluster that runs; `apart` says whether its nodes have their own host name, /tmp and
    /dev/shm.

    Each node has `gpus` fake GPUs: device files like /dev/null, which only root can make.
    """

    directory: Path
    apart: bool
    gpus: int = 0
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def shared(self) -> Path:
        """A directory that all nodes see, as a cluster's scratch file system."""
        return self.directory / "shared"

    @property
    def environment(self) -> dict[str, str]:
        """For commands that talk to this cluster; also what its processes are known by."""
        return {
            "SLURM_CONF": f"{self.directory}/slurm.conf",
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            # the Makefile runs tests again that end with this limit
            "HPC_ES_MPI_INIT_SECONDS": "45",
        }

    def call(self, *command: str, check: bool = True) -> str:
        """The output of a short command, such as squeue;
        a failure is an AssertionError with all its output.
        """
        done = subprocess.run(
            command,
            check=False,
            env=clean_environment() | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 or not check, (
            f"{shlex.join(command)}: {done.stderr}{self.logs()}"
        )
        return done.stdout + ("" if check else done.stderr)

    def on(self, node: str, *command: str) -> None:
        """Run a command as on this node, as root: with its mounts."""
        pid = str(self.daemons[f"slurmd.{node}"].pid)
        subprocess.run(["nsenter", "--target", pid, "--mount", *command], check=True, timeout=60)

    def processes(self, node: str) -> list[int]:
        """All that runs on this node."""
        of = f"/proc/{self.daemons[f'slurmd.{node}'].pid}/ns/uts"
        result = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns" / "uts").samefile(of):
                    result.append(int(process.name))
        return result

    def logs(self) -> str:
        """The last lines of each daemon's log, for messages."""
        logs = sorted(self.directory.glob("slurm*.log"))
        return "".join(
            f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-6:]) + "\n"
            for path in logs
        )

    def start(self) -> None:
        """Start the daemons and return when both nodes are idle."""
        for name in ("state", "shared"):
            (self.directory / name).mkdir()
        (self.directory / "munge.key").write_bytes(os.urandom(128))
        (self.directory / "munge.key").chmod(0o400)
        (self.directory / "plugstack.conf").touch()
        (self.directory / "slurm.conf").write_text(self._conf())
        for number in range(self.gpus):
            os.mknod(self.directory / f"fakegpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        if self.gpus:
            files = f"{self.directory}/fakegpu[0-{self.gpus - 1}]"
            (self.directory / "gres.conf").write_text(f"NodeName=n1,n2 Name=gpu File={files}\n")
        munge = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        files = [f"--{option}={self.directory}/munge.{suffix}" for option, suffix in munge.items()]
        self._daemon("munged", "--foreground", *files)
        self.wait_for((self.directory / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self.wait_until_idle()

    def start_node(self, node: str) -> None:
        """Start, or start again, the daemon of a node."""
        command = ["slurmd", "-D", "-N", node]
        if self.apart:
            command = [
                "unshare",
                "--uts",
                "--mount",
                "sh",
                "-ec",
                self._apart(node, shlex.join(command)),
            ]
        self._daemon(*command, name=f"slurmd.{node}")

    def wait_until_idle(self) -> None:
        """Return when no job is left and both nodes are idle."""
        idle = f"{NODES[0]} idle\n{NODES[1]} idle\n"
        self.wait_for(
            lambda: self.call("sinfo", "-hN", "-plow", "-o%n %t", check=False) == idle, "idle nodes"
        )

    def clear(self) -> None:
        """Cancel every job and bring every node back."""
        self.call("scancel", "--full", f"--user={getpass.getuser()}", check=False)
        for node, state in (
            line.split() for line in self.call("sinfo", "-hN", "-plow", "-o%n %t").splitlines()
        ):
            if self.daemons[f"slurmd.{node}"].poll() is not None:
                self.start_node(node)
            if state.startswith(("down", "drain", "drng")):
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self.wait_until_idle()

    def wait_for(self, condition: object, what: str, seconds: float = START_SECONDS) -> None:
        """Return when the condition holds; fails with the daemons' logs."""
        assert callable(condition)
        limit = time.monotonic() + seconds
        while not condition():
            ended = [
                name for name, daemon in self.daemons.items() if daemon.poll() not in (None, -9)
            ]
            assert time.monotonic() < limit and not ended, (
                f"waited for {what}; ended: {ended}\n{self.logs()}"
            )
            time.sleep(0.1)

    def _conf(self) -> str:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for item in sockets:
                item.bind(("", 0))
            ports = [item.getsockname()[1] for item in sockets]
        host = socket.gethostname().partition(".")[0]
        names = NODES if self.apart else (host, host)
        gres = {"gres_types": "GresTypes=gpu", "gres": f"Gres=gpu:{self.gpus}"} if self.gpus else {}
        return CONF.format(
            **{"gres_types": "", "gres": "", **gres},
            **{
                "directory": self.directory,
                "host": host,
                "ports": ports,
                "names": names,
                "user": getpass.getuser(),
            },
        )

    def _daemon(self, *command: str, name: str = "") -> None:
        name = name or command[0]
        with (self.directory / f"{name}.out.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment() | self.environment,
                start_new_session=True,
            )

    def _apart(self, node: str, command: str) -> str:
        """A script that makes a node of its own out of the process it runs in."""
        new, lines = self.directory / f"tmp.{node}", [f"hostname {node}"]
        (self.directory / "hosts").write_text(
            f"127.0.0.1 localhost {socket.gethostname()} {' '.join(NODES)}\n"
        )
        lines.append(f"mount --bind {self.directory}/hosts /etc/hosts")
        lines.append("mount -t tmpfs -o size=1g shm /dev/shm")
        lines.append(f"mkdir -p {new}")
        for path in (self.directory, ROOT, Path(sys.prefix)):
            if path.is_relative_to("/tmp"):  # it must still be seen
                inside = new / path.relative_to("/tmp")
                lines += [f"mkdir -p {inside}", f"mount --bind {path} {inside}"]
        return "\n".join([*lines, f"mount --rbind {new} /tmp", f"exec {command}"])


@contextlib.contextmanager
def running(gpus: int = 0) -> Iterator[Cluster]:
    """A cluster with `gpus` fake GPUs per node; at the end, also if this process is killed,
    everything of it is.
    """
    directory = Path(tempfile.mkdtemp(prefix="slurm_")).resolve()
    directory.chmod(0o755)
    reaper = subprocess.Popen(
        [sys.executable, "-m", "tests.slurm.reap", str(directory)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        cluster = Cluster(directory, os.geteuid() == 0, gpus)
        cluster.start()
        yield cluster
    finally:
        assert reaper.stdin
        reaper.stdin.close()
        reaper.wait()


def main(arguments: Sequence[str]) -> int:
    """Run a command, or a shell, where the cluster is."""
    # a shell that starts it with & has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = list(arguments)[list(arguments)[:1] == ["--"] :] or [os.environ.get("SHELL", "sh")]
    with running() as cluster:
        print(
            f"SLURM_CONF={cluster.directory}/slurm.conf; both nodes see {cluster.shared}",
            file=sys.stderr,
        )
        return subprocess.run(
            command, check=False, env=clean_environment() | cluster.environment
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
