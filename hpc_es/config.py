"""From YAML and overrides to frozen dataclasses; validated on rank 0 only, then broadcast.

    config = load(path, ["algorithm.sigma=0.1"])    rank 0: read, override, validate; imports pydantic
    config = parse_resolved(dump(config))           workers, and what a checkpoint holds: rebuilt, not validated

Everything known about a key stands at its field: the type hint gives the range and its wording in errors, `option`
gives default, help, and whether a resumed run may change it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import yaml
from annotated_types import Interval, MinLen

from hpc_es import kinds
from hpc_es.errors import ConfigError
from hpc_es.options import Count, Natural, NonNegative, Positive, option, options
from hpc_es.schema import legacy, validation
from hpc_es.schema import table as schema_table
from hpc_es.schema.hints import LISTS, MAPPINGS, Kinds, field_hints, item_hint, kinds_mark, options_class, union_members
from hpc_es.schema.yaml_text import Dumper, Problem, override, parse, read

Text = Annotated[str, MinLen(1)]


@options
class Noise:
    """`noise:`, where perturbations come from."""

    kind: Literal["table", "counter"] = option(
        "table: slices of a table shared by the ranks of a node; counter: computed from the key, no memory", "table"
    )
    table_size: Count = option("float32 numbers in the table (4 bytes each)", 25_000_000)


@options
class Mpi:
    """`mpi:`, how the ranks share the work; none of it but chunk_size changes a bit of the result."""

    chunk_size: Count = option("jobs evaluated together by one rank; part of the result", 16)
    schedule: Literal["on_demand", "static"] = option(
        "who evaluates a chunk: whoever is free, or a fixed rank", "on_demand", may_change=True
    )
    master_evaluates: Literal["auto"] | bool = option(
        "whether rank 0 evaluates too; auto: on up to 16 ranks", "auto", may_change=True
    )
    fault_tolerance: bool = option(
        "experimental: go on without ranks that die; Open MPI under mpiexec --with-ft ulfm only", False, may_change=True
    )


@options
class Evaluation:
    """`evaluation:`, noise-free episodes of the unperturbed theta."""

    interval: Natural = option("generations between evaluations; 0 is off", 10)
    episodes: Count = option("episodes an evaluation", 10)


@options
class Checkpoint:
    """`checkpoint:`, what is kept of the run on disk."""

    interval: Natural = option("generations between checkpoints; 0: by time and at the end only", 10)
    interval_seconds: NonNegative = option("seconds between checkpoints; 0 is off", 300.0)
    keep_last: Count = option("how many of the newest are kept", 3)
    keep_best: bool = option("also keep best.h5, the state of the best evaluation", True)


@options
class Stop:
    """`stop:`, the first limit reached ends the run, at a generation's end; null is no limit."""

    generations: Natural | None = option("finished generations", None)
    timesteps: Count | None = option("environment steps of training episodes", None)
    episodes: Count | None = option("training episodes, or programs executed", None)
    seconds: Positive | None = option("of training, over all restarts (by the clock, so not reproducible)", None)
    target_return: float | None = option("mean return of an evaluation", None)


@options
class Report:
    """`report:`."""

    tensorboard: bool = option("write TensorBoard event files", False)
    metrics_interval: Count = option("generations between rows of metrics.jsonl, log.csv and TensorBoard", 1)
    plot_interval_seconds: NonNegative = option(
        "of training, between drawings of curve.png; also at the end; 0: off", 600.0
    )
    export_interval: Natural = option("generations between exports of policy.keras; also at the end; 0 is off", 0)


@options
class Config:
    """A whole experiment. task, policy and algorithm are the Options of the module that their kind names."""

    name: Text | None = option("shown in plots and reports; default: the config file's name", None, may_change=True)
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = option("of everything random; 0 is a seed", 0)
    output: Text | None = option("the run directory; default: runs/<name>", None, may_change=True)
    task: Annotated[Any, Kinds("tasks", "episodes")] = option("what is optimised")
    policy: Annotated[Any, Kinds("policies", "mlp", by=("algorithm", "algorithms", "POLICY"))] = option(
        "what acts; null where nothing does, as in a search for programs"
    )
    algorithm: Annotated[Any, Kinds("algorithms", "es")] = option("how it learns")
    repetitions: Annotated[int, Interval(ge=1, lt=2**32)] = option(
        "run it so often, with other random numbers, in output/repetition_0000 ...; 1: in output itself",
        1,
        may_change=True,
    )
    repetition_groups: Count = option(
        "groups that the ranks are split into, to run repetitions side by side", 1, may_change=True
    )
    noise: Noise = option("perturbations", default_factory=Noise)
    mpi: Mpi = option("sharing of work", default_factory=Mpi)
    evaluation: Evaluation = option("measuring theta", default_factory=Evaluation, may_change=True)
    checkpoint: Checkpoint = option("what is kept", default_factory=Checkpoint, may_change=True)
    stop: Stop = option("when to end", default_factory=Stop, may_change=True)
    report: Report = option("extra outputs", default_factory=Report, may_change=True)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that no single section shows: (key, text)."""
        if self.stop.target_return is not None and not self.evaluation.interval:
            text = (
                "needs evaluations, but evaluation.interval is 0: the run would not stop (try evaluation.interval: 10)"
            )
            yield "stop.target_return", text
        if self.mpi.fault_tolerance and self.repetition_groups > 1:
            text = f"is {self.repetition_groups}: with mpi.fault_tolerance the ranks stay together (expected 1)"
            yield "repetition_groups", text
        if self.mpi.fault_tolerance and getattr(self.algorithm, "updates", "") == "asynchronous":
            yield "algorithm.updates", "is asynchronous: with mpi.fault_tolerance expected synchronous"


def validate(data: Mapping[str, Any]) -> Config:
    """The config that `data` describes; ConfigError lists every mistake. Imports pydantic."""
    return validation.validate(Config, data)


def load(source: Path | str, overrides: Iterable[str] = ()) -> Config:
    """The validated config in a file or config string, with overrides; its name and output are filled in."""
    if isinstance(source, str) and legacy.is_config_string(source):
        data, stem = legacy.parse(source), ""
    else:
        data, stem = read(Path(source)), Path(source).stem
    config = validate(override(data, overrides))
    name = config.name or stem
    return dataclasses.replace(config, name=name, output=config.output or f"runs/{name}")


def resolved(config: Config) -> dict[str, Any]:
    """Everything in the config, defaults too, as dicts, lists and scalars in the order of the fields."""
    plain: dict[str, Any] = _plain(config, lambda _: True)
    return plain


def _plain(value: Any, keep: Callable[[dataclasses.Field[Any]], bool]) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name), keep) for field in dataclasses.fields(value) if keep(field)
        }
    if isinstance(value, Mapping):
        return {name: _plain(item, keep) for name, item in value.items()}
    return [_plain(item, keep) for item in value] if isinstance(value, tuple | list) else value


def dump(config: Config) -> str:
    """`resolved` as YAML text, the same for equal configs."""
    return yaml.dump(resolved(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def dump_json(config: Config) -> str:
    """`resolved` as JSON text, which parses faster: for sending."""
    return json.dumps(resolved(config))


def parse_resolved(text: str) -> Config:
    """The config that `dump` or `dump_json` wrote: rebuilt without pydantic and without checking ranges."""
    try:
        data = json.loads(text) if text.startswith("{") else parse(text)
        return Config(**_build_fields(Config, data))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        came = f"{type(error).__name__}: {error} (it is damaged, or written by another version of hpc_es)"
        raise ConfigError([("", f"expected the text of a resolved config, found one that gives {came}")]) from error


def _build_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    hints = field_hints(cls)
    return {name: _build(hints.get(name, Any), value) for name, value in data.items()}


def _build(hint: Any, value: Any) -> Any:
    """`value` as its type hint says: dataclasses for mappings, tuples for lists."""
    kind, cls, member = kinds_mark(hint), options_class(hint), union_members(hint)[0]
    if value is None:
        return None
    if kind:
        cls = kinds.module(kind.package, value["kind"]).Options
    if cls:
        return cls(**_build_fields(cls, value))
    if isinstance(value, dict) and get_origin(member) in MAPPINGS:
        return {name: _build(item_hint(hint), item) for name, item in value.items()}
    if isinstance(value, list) and get_origin(member) in LISTS:
        items = (_build(item_hint(hint, place), item) for place, item in enumerate(value))
        return tuple(items) if get_origin(member) is tuple else list(items)
    return value


def identity(config: Config) -> dict[str, Any]:
    """The part of `resolved` that a resumed run must share: all but the fields marked `may_change`."""
    plain: dict[str, Any] = _plain(config, lambda field: not field.metadata.get("may_change", False))
    return plain


def config_hash(config: Config) -> str:
    """SHA-256 of the identity as canonical JSON, in hexadecimal."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def table() -> str:
    """A Markdown table of every key of every kind."""
    return schema_table.table(Config)
