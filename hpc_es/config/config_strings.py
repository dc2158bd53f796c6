"""Configs in one line, such as `env=c(task="print"),agent=c(algorithm="pg",lr=1e-4),batch_size=64`.

    settings = [setting {"," setting}]      setting = name "=" value      value = "c(" settings ")" | a Python literal

A comma separates where no bracket of any kind is open; brackets within quotes count too, as in the system that this
notation comes from. Nothing is evaluated but literals.


Config strings of the system of Abolafia et al. 2018, as the data of a YAML config: its keys, defaults and rules.

    env=c(task="print"),agent=c(algorithm="pg",lr=1e-4),batch_size=64,timestep_limit=32

What is not in the string has the default of that system. A key must be known, and its value of the type of the default
(so lr=1 is a mistake, lr=1.0 is none). Where there is an `agent` it names its algorithm, and has its keys only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from hpc_es.config.yaml_text import ConfigProblem
from hpc_es.core.errors import ConfigError
from hpc_es.core.messages import found_text, nearest

OPENING, CLOSING = "([{", ")]}"


def parse_settings(text: str) -> dict[str, Any]:
    """Return the settings as nested dicts; ConfigError says which piece is wrong, and how."""
    settings: dict[str, Any] = {}
    for piece in _split(text):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name.isidentifier():
            raise _error(text, f"expected name=value, found {piece.strip()!r}")
        if name in settings:
            raise _error(text, f"{name} is set twice")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Any:
    if text.startswith("c(") and text.endswith(")"):
        return parse_settings(text[2:-1])
    try:
        return literal(text)
    except ValueError as error:
        raise _error(text, 'expected a number, a "text", a list, True, False, None or c(...)') from error


def literal(text: str) -> Any:
    """Return the value of a Python literal; ValueError."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text!r} is no Python literal") from error


def _split(text: str) -> list[str]:
    pieces, depth = [""], 0
    for character in text:
        depth += (character in OPENING) - (character in CLOSING)
        if depth < 0:
            raise _error(text, "a bracket is closed that was not opened")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth:
        raise _error(text, "a bracket is not closed")
    return [] if pieces == [""] or not text.strip() else pieces


def _error(text: str, what: str) -> ConfigError:
    return ConfigError([("", f"the config string {text!r}: {what}")])


Settings = dict[str, Any]

# By the names that the algorithms have there.
AGENTS: dict[str, Settings] = {
    "pg": {
        "policy_lstm_sizes": [35, 35],
        "value_lstm_sizes": [35, 35],
        "obs_embedding_size": 10,
        "grad_clip_threshold": 10.0,
        "param_init_factor": 1.0,
        "lr": 5e-5,
        "pi_loss_hparam": 1.0,
        "vf_loss_hparam": 0.5,
        "entropy_beta": 1e-2,
        "regularizer": 0.0,
        "softmax_tr": 1.0,
        "optimizer": "rmsprop",
        "topk": 0,
        "topk_loss_hparam": 0.0,
        "topk_batch_size": 1,
        "ema_baseline_decay": 0.99,
        "eos_token": False,
        "replay_temperature": 1.0,
        "alpha": 0.0,
        "iw_normalize": True,
    },
    "ga": {"crossover_rate": 0.99, "mutation_rate": 0.086},
    "rand": {},
}
DEFAULTS: Settings = {
    "agent": {"algorithm": "pg"},
    "env": {
        "task": "",
        "task_cycle": [],
        "task_kwargs": "{}",
        "task_manager_config": {"correct_bonus": 2.0, "code_length_bonus": 1.0},
        "correct_syntax": False,
        "config_for_iclr": True,
        "fixed_string": [],
    },
    "batch_size": 64,
    "timestep_limit": 32,
}
TEXT_BASE = 27  # of every task that has a choice, where config_for_iclr is False
OTHER_BASES = ("print", "print-hello", "reverse", "remove-char")
KWARGS = {  # of a task's constructor: the key here
    "base": "base",
    "fixed_string": "fixed_string",
    "n": "case_count",
    "min_len": "min_length",
    "max_len": "max_length",
    "min_length": "min_length",
    "max_length": "max_length",
    "length": "max_length",
}
STATIC = "static-bylen"  # the only reward_type whose cases are the same at every scoring


def is_config_string(text: str) -> bool:
    """Return whether this is meant as one, and not as a file or a dotted override: it begins with name=."""
    return re.match(r"\s*[A-Za-z_]\w*\s*=", text) is not None


def parse_config_string(text: str, task_override: Any = None) -> Settings:
    """Return the data of a YAML config, its name with it; ConfigError lists every mistake by the keys of the string.

    `task_override` is what overrides put into the section `task`: its name or cycle serves where the string has none.
    """
    given = parse_settings(text)
    problems: list[ConfigProblem] = []
    settings = _updated(DEFAULTS, {name: value for name, value in given.items() if name != "agent"}, "", problems)
    if isinstance(task_override, Mapping):
        settings["env"] = _with_task(settings["env"], task_override)
    algorithm, agent = _agent(given, problems)
    task = _task(settings, problems)
    if problems:
        raise ConfigError(problems)
    what = task.get("name") or "_".join(task["cycle"])
    return {
        "name": f"{algorithm}_{what}",
        "task": task,
        "policy": None,
        "algorithm": _algorithm(algorithm, agent, settings["batch_size"]),
    }


def _with_task(env: Settings, override: Mapping[str, Any]) -> Settings:
    """Return the settings of `env` with the task of an override, where they have none."""
    if env["task"] or env["task_cycle"]:
        return env
    name, cycle = override.get("name"), override.get("cycle")
    name, cycle = name if isinstance(name, str) else "", cycle if isinstance(cycle, list) else []
    return {**env, "task": name, "task_cycle": cycle}


def _agent(given: Settings, problems: list[ConfigProblem]) -> tuple[str, Settings]:
    agent = given.get("agent", DEFAULTS["agent"])
    if not isinstance(agent, dict):
        problems.append(("agent", f"expected c(algorithm=...), found {found_text(agent)}"))
        return "", {}
    names = ", ".join(map(repr, AGENTS))
    if "algorithm" not in agent:
        problems.append(("agent.algorithm", f"expected one of {names}, but the key is missing"))
        return "", {}
    name = agent["algorithm"]
    if not isinstance(name, str) or name not in AGENTS:
        near = nearest(name, AGENTS) if isinstance(name, str) else ""
        problems.append(("agent.algorithm", f"expected one of {names}, found {found_text(name)}{near}"))
        return "", {}
    rest = {key: value for key, value in agent.items() if key != "algorithm"}
    return name, _updated(AGENTS[name], rest, "agent.", problems)


def _updated(defaults: Settings, given: Mapping[str, Any], prefix: str, problems: list[ConfigProblem]) -> Settings:
    """Return the defaults with what is given in place of them."""
    settings = dict(defaults)
    for name, value in given.items():
        if name not in defaults:
            valid = nearest(name, defaults) or f"; valid keys are {', '.join(map(repr, defaults)) or 'none'}"
            problems.append((prefix + name, f"unknown key {prefix + name!r}{valid}"))
        elif isinstance(defaults[name], dict) and isinstance(value, dict):
            settings[name] = _updated(defaults[name], value, f"{prefix}{name}.", problems)
        elif type(value) is type(defaults[name]):
            settings[name] = value
        else:
            text = f"expected {_words(defaults[name])}, found {_shown(value)}"
            problems.append((prefix + name, text))
    return settings


def _words(default: Any) -> str:
    words = {bool: "True or False", int: "a whole number", float: "a number with a point or exponent, such as 1.0"}
    return {**words, str: 'a "text"', list: "a list in brackets", dict: "c(...)"}[type(default)]


def _shown(value: Any) -> str:
    return "c(...) or a dict" if isinstance(value, dict) else repr(value)


def _task(settings: Settings, problems: list[ConfigProblem]) -> Settings:
    """`task:`; settings with mistakes may give one that is not used."""
    env, bonuses = settings["env"], settings["env"]["task_manager_config"]
    name, cycle = env["task"], list(env["task_cycle"])
    if name and cycle:
        problems.append(("env.task_cycle", "expected task or task_cycle, found both: remove one"))
    if not name and not cycle:
        text = 'expected a coding task such as "reverse", or a task_cycle, or an override task.name=..., found none'
        problems.append(("env.task", text))
    if not all(isinstance(each, str) for each in cycle):
        problems.append(("env.task_cycle", f'expected a list of "texts", found {found_text(cycle)}'))
    task: Settings = {"kind": "programs", **({"cycle": cycle} if cycle else {"name": name})}
    task |= {"max_code_length": settings["timestep_limit"], "require_correct_syntax": env["correct_syntax"], **bonuses}
    if not env["config_for_iclr"]:
        if name == "print" and not env["fixed_string"]:
            task["name"] = "print-hello"  # so it was called before
        if {name, *cycle} - {""} <= set(OTHER_BASES):
            task["base"] = TEXT_BASE
        task["simplify"] = True
    if env["fixed_string"]:
        task["fixed_string"] = env["fixed_string"]
    return task | _kwargs(env["task_kwargs"], problems)


def _kwargs(text: str, problems: list[ConfigProblem]) -> Settings:
    """`env.task_kwargs`, a dict within a text."""
    try:
        kwargs = literal(text)
    except ValueError as error:
        problems.append(("env.task_kwargs", f"expected a dict in quotes, such as \"{{'base': 27}}\": {error}"))
        return {}
    if not isinstance(kwargs, dict) or not set(kwargs) <= {*KWARGS, "reward_type"}:
        known = ", ".join(map(repr, KWARGS))
        problems.append(("env.task_kwargs", f"expected a dict with keys of {known}, 'reward_type', found {text!r}"))
        return {}
    if kwargs.pop("reward_type", STATIC) != STATIC:
        why = "the others draw new cases at each scoring, so that rewards could not be compared"
        problems.append(("env.task_kwargs", f"expected reward_type {STATIC!r}, found {text!r}: {why}"))
    return {KWARGS[name]: value for name, value in kwargs.items()}


def _algorithm(name: str, agent: Settings, batch_size: int) -> Settings:
    """`algorithm:`; random search executes one program after the other there, so its batch_size says nothing."""
    if name == "ga":
        return {"kind": "ga", "population_size": batch_size, **agent}
    if name == "rand":
        return {"kind": "random_search"}
    rest = {key: value for key, value in agent.items() if key not in {"lr", "optimizer"}}
    optimizer = {"kind": agent["optimizer"], "learning_rate": agent["lr"]}
    return {"kind": "policy_gradient", "batch_size": batch_size, "optimizer": optimizer, **rest}
