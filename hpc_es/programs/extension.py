"""What the package of program synthesis gives hpc_es."""

from __future__ import annotations

import enum

from hpc_es.core.extensions import Extension


class ProgramPurpose(enum.IntEnum):
    """Random numbers of searches for programs. Results depend on the values."""

    PROGRAMS = 11
    REPLAY = 14


EXTENSION = Extension(
    algorithms={
        "ga": "hpc_es.programs.ga",
        "policy_gradient": "hpc_es.programs.policy_gradient.algorithm",
        "random_search": "hpc_es.programs.random_search",
    },
    tasks={"programs": "hpc_es.programs.task"},
    commands={
        "run-program": "hpc_es.programs.commands",
        "program-table": "hpc_es.programs.commands",
    },
    config_strings="hpc_es.programs.config_strings",
    best_member="hpc_es.programs.best_programs:best_member",
    report_sections="hpc_es.programs.report_sections:sections",
    purposes=ProgramPurpose.__members__,
)
