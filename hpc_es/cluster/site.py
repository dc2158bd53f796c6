"""Site profiles: what batch scripts need to know about a cluster.

They are in ~/.config/hpc_es/site.yaml or another file. `detect` finds values for a new profile, and
`profile_text` is its content.
"""

from __future__ import annotations

import dataclasses
import getpass
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from hpc_es.config import validation
from hpc_es.config.options import Count, Limits, option, options
from hpc_es.config.yaml_text import read_yaml
from hpc_es.core.data import Json
from hpc_es.core.errors import ConfigError, ConfigProblem, UserError, as_yaml, found_text
from hpc_es.core.ownership import link_owner, open_to_all, stranger
from hpc_es.core.paths import current_directory, expanded, user_directory
from hpc_es.core.run_files import exists

Word = Annotated[str, Limits(min_length=1)]
Words = Annotated[tuple[Word, ...], Limits(min_length=1)]

AUTO = "auto"
GPUS = r"([A-Za-z][\w.-]*:)?[1-9]\d*"  # a number, or type:number


@options
class Site:
    """The keys of a site profile.

    Each has a default, so that an empty profile describes a plain SLURM cluster.
    """

    scheduler: Literal["slurm", "pbs"] = option("scheduler of hpc-es submit", default="slurm")
    partition: Word | None = option("partition to run in; in PBS the queue", default=None)
    account: Word | None = option("account to charge", default=None)
    qos: Word | None = option("quality of service", default=None)
    options: tuple[Word, ...] = option(
        "further options of sbatch or qsub, such as --constraint=genoa", default=()
    )
    export: Literal["all", "none"] | tuple[Word, ...] | None = option(
        "environment variables that a job inherits: all, none, or a list of names; null: the default of the site",
        default=None,
    )
    modules: tuple[Word, ...] = option("environment modules to load", default=())
    setup: tuple[str, ...] = option(
        "lines of bash before the run, such as source ~/hpc_es/bin/activate", default=()
    )
    launcher: Words = option(
        "command that starts the ranks: srun or mpiexec, with further options", default=("srun",)
    )
    mpi_plugin: Word = option(
        "MPI interface of srun (--mpi); auto: the one that the MPI library supports", default=AUTO
    )
    python: Words | None = option(
        "Python interpreter; null: the submitting one, or python in a container", default=None
    )
    container: tuple[Word, ...] = option(
        "command before the interpreter, such as [apptainer, exec, image.sif]", default=()
    )
    scratch: Word | None = option(
        "directory of run directories whose path in the config is relative", default=None
    )
    cores_per_node: Count | None = option("number of cores of a node", default=None)
    gpus_per_node: Count | Word | None = option(
        "GPUs of a node: a number, or type and number such as a100:4", default=None
    )
    gpu_bind: Word | None = option(
        "option --gpu-bind of srun, such as closest; null: the default of SLURM", default=None
    )

    def problems(self) -> Iterator[ConfigProblem]:
        """Yield mistakes in single values."""
        if isinstance(self.gpus_per_node, str) and not re.fullmatch(
            GPUS, self.gpus_per_node, re.ASCII
        ):
            yield (
                "gpus_per_node",
                "expected a number, or type and number such as a100:4, found "
                f"{found_text(self.gpus_per_node)}",
            )
        for name, words in (
            ("scratch", [self.scratch or "/"]),
            ("python", self.python),
            ("container", self.container),
        ):
            try:
                places = [expanded(word) for word in words or ()]
            except ValueError as error:
                yield name, str(error)
                continue
            if name == "scratch" and not Path(places[0]).is_absolute():
                yield (
                    name,
                    f"expected an absolute path, such as /scratch/$USER, found {places[0]!r}",
                )
        for text in self.options:
            if not text.startswith("-") or text.count("'") % 2 or text.count('"') % 2:
                yield (
                    "options",
                    f"expected options such as --constraint=genoa, found {found_text(text)}",
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.isprintable():
                    yield field.name, f"expected text on one line, found {found_text(text)}"

    def option_words(self) -> list[str]:
        """Return the words of `options`, such as --mail-user and me@x.org."""
        return [word for text in self.options for word in shlex.split(text)]

    def scratch_directory(self) -> Path:
        """Return `scratch` with ~ and variables replaced; the current directory if it is null."""
        return Path(expanded(self.scratch)) if self.scratch else current_directory()

    def interpreter(self, submitting: str) -> tuple[str, ...]:
        """Return the words that start Python in a job, given the Python that submits it.

        ~ and variables are replaced: a script has the words in quotes, so its shell would not
        replace them.
        """
        own = tuple(map(expanded, self.python or ())) or (
            ("python",) if self.container else (submitting,)
        )
        return (*map(expanded, self.container), *own)

    def has_srun(self) -> bool:
        """Return whether the launcher is srun, whose options are known."""
        return Path(self.launcher[0]).name == "srun"


def default_path() -> Path:
    """Return the path of the user's profile."""
    return user_directory("XDG_CONFIG_HOME", ".config") / "hpc_es" / "site.yaml"


def load_site(path: Path | None) -> Site:
    """Return the profile in a file.

    Without a path it is that of the user, or the defaults if there is none.

    Raises:
        ConfigError: the profile is not valid.
        UserError: nobody has named it, and it may be that of somebody else, as where HOME is /tmp.
    """
    if path is None:
        path = default_path()
        if not exists(path):
            return Site()
        around = stranger(path.parent, may_groups=True)
        if reason := around or link_owner(path) or open_to_all(path):
            raise UserError(
                f"{path} has lines that jobs run, and somebody else may have written it ({reason}): "
                "read it, and name it with --site, or set HOME or XDG_CONFIG_HOME"
            )
    try:
        return validation.validate(Site, read_yaml(path, may_be_empty=True))
    except ConfigError as error:
        lines = [line.removeprefix(f"{path}: ") for line in str(error).splitlines()]
        raise ConfigError([("", f"{path}: {line}") for line in lines]) from None


def gpu_count(gpus: int | str) -> int:
    """Return the number of GPUs in a value such as 4 or a100:4."""
    return int(str(gpus).rpartition(":")[2])


# A new profile.


@dataclasses.dataclass(frozen=True)
class Detected:
    """Values for a new profile, and the source of each, or the reason why there is none."""

    values: Mapping[str, Json]
    sources: Mapping[str, str]


def detect(environ: Mapping[str, str]) -> Detected:
    """Return the values that the environment of the submitting shell provides.

    Others come from sinfo, sacctmgr and the MPI library.
    """
    values: dict[str, Json] = {}
    sources: dict[str, str] = {}

    def add(key: str, value: Json, source: str) -> None:
        sources[key] = source
        if value:
            values[key] = value

    nodes = partitions(_output("sinfo", "--noheader", "--format=%P|%X|%Y|%G|%D"))
    default = next((name for name in nodes if name.endswith("*")), "")
    largest = max(nodes, key=lambda name: (nodes[name].gpus != "", name == default), default="")
    names = ", ".join(name.rstrip("*") for name in nodes)
    add(
        "partition",
        None,
        f"sinfo lists {names}; the default is {default.rstrip('*') or 'none'}"
        if nodes
        else NO_SINFO,
    )
    if nodes:
        add("cores_per_node", nodes[largest].cores, f"sinfo, partition {largest.rstrip('*')}")
        gpus = nodes[largest].gpus
        add(
            "gpus_per_node",
            int(gpus) if gpus.isdecimal() else gpus,
            f"sinfo, partition {largest.rstrip('*')}",
        )
    account = _output(
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "user",
        getpass.getuser(),
        "format=DefaultAccount",
    )
    add(
        "account",
        None,
        f"sacctmgr: your default is {account.strip()}"
        if account.strip()
        else "sacctmgr lists none",
    )
    modules = [name for name in environ.get("LOADEDMODULES", "").split(":") if name]
    add("modules", modules, "loaded in this shell" if modules else "none are loaded in this shell")
    scratch = next(
        (f"${name}" for name in ("SCRATCH", "WORK") if Path(environ.get(name) or "-").is_dir()),
        None,
    )
    add(
        "scratch",
        scratch,
        "variable of this shell" if scratch else "neither $SCRATCH nor $WORK is a directory",
    )
    # not in this process: it imports MPI without starting it
    command = [sys.executable, "-m", "hpc_es.mpi.plugin"]
    # not here: a directory hpc_es of somebody else would replace this package
    done = subprocess.run(  # noqa: S603
        command, check=False, cwd="/", capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode == 0:
        add("mpi_plugin", None, f"found now: {done.stdout.strip()}")
    else:
        add(
            "launcher", ["mpiexec"] if nodes else None, done.stderr.strip().removeprefix("hpc-es: ")
        )
    return Detected(values, sources)


NO_SINFO = "sinfo gave no answer: run hpc-es site init on a login node"


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The nodes of a partition: cores, and GPUs such as a100:4, or "" without GPUs."""

    cores: int
    gpus: str


def partitions(text: str) -> dict[str, Nodes]:
    """Return the nodes of each partition from the output of sinfo.

    The most frequent kind of nodes counts. A line is PARTITION|SOCKETS|CORES PER SOCKET|GRES|NODES,
    such as "gpu*|2|32|gpu:a100:4(S:0-1)|12".
    """
    kinds: dict[str, tuple[int, Nodes]] = {}
    for line in text.splitlines():
        name, sockets, cores, gres, count = [*line.split("|"), "", "", "", ""][:5]
        gpus = re.search(r"\bgpu:((?:[\w.-]+:)?\d+)", gres)
        number, *per_node = (
            int(re.sub(r"\D", "", field) or 0) for field in (count, sockets, cores)
        )
        size = per_node[0] * per_node[1]
        if name and size and number > kinds.get(name, (0, None))[0]:
            kinds[name] = number, Nodes(size, gpus[1] if gpus else "")
    return {name: nodes for name, (_, nodes) in kinds.items()}


def _output(*command: str) -> str:
    """Return the output of a command, "" if it fails or does not exist."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def profile_text(detected: Detected) -> str:
    """Return a profile with all keys and their meaning; those without a value are comments."""
    lines = [
        "# Site profile of hpc_es, written by hpc-es site init. Keys in comments have their default value.",
        "",
    ]
    for field in dataclasses.fields(Site):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        value, source = detected.values.get(field.name), detected.sources.get(field.name)
        lines.append(f"# {field.metadata['help']}{f' ({source})' if source else ''}")
        text = as_yaml(default if value is None else value)
        lines += [f"{'# ' if value is None else ''}{field.name}: {text}", ""]
    return "\n".join(lines)
