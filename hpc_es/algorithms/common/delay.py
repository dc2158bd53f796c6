"""Options of algorithms whose generations may lack the last updates, and what they need.

`training/delay_line.py` has the states that such generations are drawn around.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hpc_es.config.options import option, options
from hpc_es.core.declarations import Needs, Requirement, Setting


@options
class OverlapOptions:
    """Options of algorithms whose generations can overlap."""

    delay: Literal[0, 1, 2] = option(
        "updates that a generation does without, so that ranks need not wait for the longest jobs of the previous one; "
        "learning may need more timesteps",
        0,
    )

    def looks_ahead(self) -> bool:
        """Return False: a generation is drawn around the state that is known."""
        return False


@options
class DelayOptions(OverlapOptions):
    """Options of algorithms that can be delayed, and may extrapolate theta."""

    lookahead: bool | None = option(
        "extrapolation of theta by the last step times the delay; null: true if the optimizer has momentum",
        None,
    )

    def looks_ahead(self) -> bool:
        """Return `lookahead`, or whether the optimizer has momentum."""
        optimizer = getattr(self, "optimizer", None)
        kind = getattr(optimizer, "kind", "none")
        has_momentum = kind == "adam" or (
            kind in ("sgd", "clipup") and bool(getattr(optimizer, "momentum", 0.0))
        )
        return has_momentum if self.lookahead is None else self.lookahead


def needs_of_overlapping(needs: Needs, because: Setting) -> Needs:
    """Return the requirements of an algorithm whose generations are evaluated at the same time."""
    requires = (
        Requirement(
            "mpi.schedule",
            ("on_demand",),
            because,
            ": chunks of several generations go to free ranks",
        ),
        Requirement(
            "mpi.update",
            ("gathered",),
            because,
            ": rank 0 makes the updates while other ranks evaluate",
        ),
        Requirement("mpi.fault_tolerance", (False,), because),
    )
    return replace(needs, in_flight=because, requires=(*needs.requires, *requires))


def needs_of_delayed(needs: Needs, options: OverlapOptions) -> Needs:
    """Return the requirements of an algorithm that can be delayed."""
    return (
        needs_of_overlapping(needs, Setting("algorithm.delay", str(options.delay)))
        if options.delay
        else needs
    )
