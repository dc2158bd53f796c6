"""The shared arrays of the state on every rank: rank 0's, in one message, or each rank's own after the first one.

An array that is read-only, and the one of the broadcast before, is not sent again: large matrices that an algorithm
changes now and then. Shapes are told where they have changed.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np

from hpc_es.core.data import Array, Arrays, State
from hpc_es.mpi.world import World

LARGE = 1 << 20  # bytes of an array that is sent on its own
MOST = 62  # arrays that a message of one number can speak of; those behind are always sent


class SharedArrays:
    """What each rank has of them; every rank calls `broadcast`, of a plan that is rank 0's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.reset()

    def reset(self) -> None:
        """Begin anew: not all ranks may have what was sent."""
        self._known: dict[str, Array] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def plan(self, shared: Arrays) -> tuple[int, int]:
        """Rank 0: the arrays that are not sent, as bits in their order, and whether their shapes are to be told."""
        places = enumerate(list(shared.items())[:MOST])
        same = [place for place, (name, array) in places if self._known.get(name) is array and _is_fixed(array)]
        shapes = {name: array.shape for name, array in shared.items()}
        return sum(1 << place for place in same), int(shapes != self._shapes)

    def broadcast(self, shared: Arrays, plan: tuple[int, int]) -> Arrays:
        """Return rank 0's arrays; names and dtypes are the same everywhere, and nothing else is looked at elsewhere."""
        if self._world.rank == 0:
            shared = contiguous(shared)  # elsewhere they are that
        same, reshaped = plan
        if reshaped:
            self._tell_shapes(shared)
        kept = [name for place, name in enumerate(shared) if place < MOST and same >> place & 1]
        self._known = {name: self._known[name] for name in kept}  # elsewhere the others go before the new ones come
        sent = {name: array for name, array in shared.items() if name not in self._known}
        self._known |= self._sent(sent) if self._world.size > 1 else sent
        return {name: self._known[name] for name in shared}

    def _tell_shapes(self, shared: Arrays) -> None:
        shapes = {name: array.shape for name, array in shared.items()}
        told = json.loads(self._world.broadcast_text(json.dumps(shapes)))
        self._shapes = {name: tuple(shape) for name, shape in told.items()}

    def _sent(self, arrays: Arrays) -> dict[str, Array]:
        """Send large arrays as they are, and the small ones together."""
        sizes = {name: math.prod(self._shapes[name]) * array.itemsize for name, array in arrays.items()}
        is_first, got = self._world.rank == 0, dict(arrays)
        small = {name: array for name, array in arrays.items() if sizes[name] < LARGE}
        packed, start = np.empty(sum(sizes[name] for name in small), np.uint8), 0
        for name, array in small.items():
            stop = start + sizes[name]
            place = packed[start:stop].view(array.dtype).reshape(self._shapes[name])
            if is_first:
                place[...] = array
            else:
                got[name] = place
            start = stop
        if small:
            self._world.broadcast(packed)
        for name, array in arrays.items():
            if name not in small:
                got[name] = array if is_first else np.empty(self._shapes[name], array.dtype)
                self._world.broadcast(got[name])
        return got


def contiguous(arrays: Arrays) -> dict[str, Array]:
    """Return the arrays as a broadcast leaves them: the bits of a product depend on how its factors lie in memory."""
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}


def _is_fixed(array: Array) -> bool:
    return not array.flags.writeable


class SharedState:
    """The state on every rank; where each updates it itself (`replicated`) it is sent whole, and only once."""

    def __init__(self, world: World, replicated: bool, initial: State) -> None:
        self._world, self._arrays, self._replicated = world, SharedArrays(world), replicated
        groups = (initial.shared, initial.master)
        self._forms = State(0, *({name: np.empty(0, array.dtype) for name, array in group.items()} for group in groups))
        self.reset()

    def reset(self) -> None:
        """Begin anew: not all ranks may have what was sent."""
        self._arrays.reset()
        self._all_know = False

    def plan(self, state: State) -> tuple[int, int, int]:
        """Rank 0: that of `SharedArrays`, and whether all know the state already."""
        return 0 if self._all_know else 1, *self._arrays.plan(self._travelling(state))

    def without_arrays(self, state: State, to_send: bool) -> State:
        """Return what `broadcast` needs of a state: elsewhere than on rank 0 names, so that arrays may go before."""
        return state if self._world.rank == 0 or not to_send else replace(self._forms, generation=state.generation)

    def broadcast(self, state: State, plan: tuple[int, int, int]) -> State:
        """Return the state with rank 0's arrays; elsewhere `master` is empty unless all update it."""
        to_send, *how = plan
        if not to_send:
            return state
        got = self._arrays.broadcast(self._travelling(state), (how[0], how[1]))
        if not self._replicated:
            return State(state.generation, {name: got[name] for name in state.shared}, state.master)
        self._all_know = True
        self._arrays.reset()  # it is not sent again
        return State(
            state.generation,
            {name: got[f"shared/{name}"] for name in state.shared},
            {name: got[f"master/{name}"] for name in state.master},
        )

    def _travelling(self, state: State) -> Arrays:
        if not self._replicated:
            return state.shared
        groups = {"shared": state.shared, "master": state.master}
        return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
