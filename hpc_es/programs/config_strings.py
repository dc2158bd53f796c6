"""Config strings in the notation of Abolafia et al. 2018, converted to the data of a YAML config.

    env=c(task="print"),agent=c(algorithm="pg",lr=1e-4),batch_size=64,timestep_limit=32

    settings = [setting {"," setting}]
    setting = name "=" value
    value = "c(" settings ")" | a Python literal

A comma separates settings where no bracket is open; brackets within quotes count too, as in the
original system. Only literals are evaluated. Missing keys have the defaults of that system. A key
must be known, and its value must have the type of the default (lr=1 is a mistake, lr=1.0 is not).
`agent` must name its algorithm and has the keys of that algorithm only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hpc_es.core.data import ConfigData, Json
from hpc_es.core.errors import ConfigError, ConfigProblem, found_text, nearest

Settings = dict[str, Any]

OPENING, CLOSING = "([{", ")]}"


def parse_settings(text: str) -> Settings:
    """Return the settings as nested dicts; raise ConfigError for a wrong setting."""
    settings: Settings = {}
    for piece in _split(text):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name.isidentifier():
            raise _error(text, f"expected name=value, found {piece.strip()!r}")
        if name in settings:
            raise _error(text, f"{name} is set twice")
        settings[name] = _value(value)
    return settings


def _value(text: str) -> Json:
    if text.startswith("c(") and text.endswith(")"):
        return parse_settings(text[2:-1])
    try:
        return literal(text)
    except ValueError as error:
        raise _error(
            text, 'expected a number, a "text", a list, True, False, None or c(...)'
        ) from error


def literal(text: str) -> Json:
    """Return the value of a Python literal; raise ValueError for anything else."""
    try:
        value: Json = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"expected a Python literal, found {text!r}") from error
    return value


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


# By the names of the algorithms in that system.
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
TEXT_BASE = 27  # base of the tasks in OTHER_BASES if config_for_iclr is False
OTHER_BASES = ("print", "print-hello", "reverse", "remove-char")
KWARGS = {  # argument of a task's constructor: key of `task:`
    "base": "base",
    "fixed_string": "fixed_string",
    "n": "case_count",
    "min_len": "min_length",
    "max_len": "max_length",
    "min_length": "min_length",
    "max_length": "max_length",
    "length": "max_length",
}
STATIC = "static-bylen"  # the only reward_type with the same cases for every program


def reads(text: str) -> bool:
    """Return whether a text has one of the settings."""
    try:
        return not DEFAULTS.keys().isdisjoint(parse_settings(text))
    except ConfigError:  # reported by `parse_config_string`, unless another notation reads it
        return False


def parse_config_string(text: str, task_override: object = None) -> Settings:
    """Return the data of a YAML config with its name.

    `task_override` is the section `task` of the overrides; its name or cycle is used if the string
    has none.

    Raises:
        ConfigError: every mistake, by the keys of the string.
    """
    top = parse_settings(text)
    problems: list[ConfigProblem] = []
    settings = _updated(
        DEFAULTS, {name: value for name, value in top.items() if name != "agent"}, "", problems
    )
    if isinstance(task_override, Mapping):
        settings["env"] = _with_task(settings["env"], task_override)
    algorithm, agent = _agent(top, problems)
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


def _with_task(env: Settings, override: ConfigData) -> Settings:
    """Return the settings of `env`, with the task of an override if they have none."""
    if env["task"] or env["task_cycle"]:
        return env
    name, cycle = override.get("name"), override.get("cycle")
    name, cycle = name if isinstance(name, str) else "", cycle if isinstance(cycle, list) else []
    return {**env, "task": name, "task_cycle": cycle}


def _agent(settings: Settings, problems: list[ConfigProblem]) -> tuple[str, Settings]:
    agent = settings.get("agent", DEFAULTS["agent"])
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
        problems.append(
            ("agent.algorithm", f"expected one of {names}, found {found_text(name)}{near}")
        )
        return "", {}
    rest = {key: value for key, value in agent.items() if key != "algorithm"}
    return name, _updated(AGENTS[name], rest, "agent.", problems)


def _updated(
    defaults: Settings, values: ConfigData, prefix: str, problems: list[ConfigProblem]
) -> Settings:
    """Return the defaults, replaced by valid values; add mistakes to `problems`."""
    settings = dict(defaults)
    for name, value in values.items():
        if name not in defaults:
            valid = (
                nearest(name, defaults)
                or f"; valid keys are {', '.join(map(repr, defaults)) or 'none'}"
            )
            problems.append((prefix + name, f"unknown key {prefix + name!r}{valid}"))
        elif isinstance(defaults[name], dict) and isinstance(value, dict):
            settings[name] = _updated(defaults[name], value, f"{prefix}{name}.", problems)
        elif type(value) is type(defaults[name]):
            settings[name] = value
        else:
            value_text = "c(...) or a dict" if isinstance(value, dict) else repr(value)
            problems.append(
                (prefix + name, f"expected {_type_text(defaults[name])}, found {value_text}")
            )
    return settings


def _type_text(default: object) -> str:
    numbers = {
        bool: "True or False",
        int: "a whole number",
        float: "a number with a point or exponent, such as 1.0",
    }
    return {**numbers, str: 'a "text"', list: "a list in brackets", dict: "c(...)"}[type(default)]


def _task(settings: Settings, problems: list[ConfigProblem]) -> Settings:
    """Return the section `task`, which is not used if the settings have mistakes."""
    env, bonuses = settings["env"], settings["env"]["task_manager_config"]
    name, cycle = env["task"], list(env["task_cycle"])
    if name and cycle:
        problems.append(("env.task_cycle", "expected task or task_cycle, found both: remove one"))
    if not name and not cycle:
        problems.append(
            (
                "env.task",
                'expected a coding task such as "reverse", or a task_cycle, or an override '
                "task.name=..., found none",
            )
        )
    if not all(isinstance(name, str) for name in cycle):
        problems.append(
            ("env.task_cycle", f'expected a list of "texts", found {found_text(cycle)}')
        )
    task: Settings = {"kind": "programs", **({"cycle": cycle} if cycle else {"name": name})}
    task |= {
        "max_code_length": settings["timestep_limit"],
        "require_correct_syntax": env["correct_syntax"],
        **bonuses,
    }
    if not env["config_for_iclr"]:
        if name == "print" and not env["fixed_string"]:
            task["name"] = "print-hello"  # its name in that mode
        if {name, *cycle} - {""} <= set(OTHER_BASES):
            task["base"] = TEXT_BASE
        task["simplify"] = True
    if env["fixed_string"]:
        task["fixed_string"] = env["fixed_string"]
    return task | _kwargs(env["task_kwargs"], problems)


def _kwargs(text: str, problems: list[ConfigProblem]) -> Settings:
    """Return the options of `env.task_kwargs`, a dict within a text."""
    try:
        kwargs = literal(text)
    except ValueError as error:
        problems.append(
            ("env.task_kwargs", f"expected a dict in quotes, such as \"{{'base': 27}}\": {error}")
        )
        return {}
    if not isinstance(kwargs, dict) or not set(kwargs) <= {*KWARGS, "reward_type"}:
        known = ", ".join(map(repr, KWARGS))
        problems.append(
            (
                "env.task_kwargs",
                f"expected a dict with keys of {known}, 'reward_type', found {text!r}",
            )
        )
        return {}
    if kwargs.pop("reward_type", STATIC) != STATIC:
        problems.append(
            (
                "env.task_kwargs",
                f"expected reward_type {STATIC!r}, found {text!r}: the others draw new cases at "
                "each scoring, so that rewards could not be compared",
            )
        )
    return {KWARGS[name]: value for name, value in kwargs.items()}


def _algorithm(name: str, agent: Settings, batch_size: int) -> Settings:
    """Return the section `algorithm`.

    Random search has no batch size, since it executes one program at a time.
    """
    if name == "ga":
        return {"kind": "ga", "population_size": batch_size, **agent}
    if name == "rand":
        return {"kind": "random_search"}
    rest = {key: value for key, value in agent.items() if key not in {"lr", "optimizer"}}
    optimizer = {"kind": agent["optimizer"], "learning_rate": agent["lr"]}
    return {"kind": "policy_gradient", "batch_size": batch_size, "optimizer": optimizer, **rest}
