"""`policy: {kind: network}`: a custom network.

    policy: {kind: network, network: "my_net:build"}

`build(observations, outputs, **network_kwargs)` gets the shape and dtype of an observation
(`ObservationSpec`) and the number of outputs that the action space needs, and returns a network:
see `networks/jax_networks.py`. Observations of Dict and Tuple spaces reach the network as a dict or
tuple of arrays. If it has a parameter `seed`, this is a whole number for the random
numbers of the initial parameters.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from hpc_es.config.options import PathText, Together, option, options
from hpc_es.config.registry import config_directory, import_function
from hpc_es.config.source_code import source_hash
from hpc_es.core.data import (
    Box,
    Float32,
    Normaliser,
    ObservationSpec,
    Spaces,
    whole_elements,
)
from hpc_es.core.declarations import Computes
from hpc_es.core.errors import ConfigError, failure_from_error
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.paths import expanded, followed
from hpc_es.core.policy import Actor, Pure
from hpc_es.core.population import LowRank, Population
from hpc_es.core.run_files import sha256_of
from hpc_es.policies.networks.backend import NetworkBackend, backends_of, network_backend, set_up
from hpc_es.policies.networks.compiled_actor import CompiledActor, CompiledCall, SharedActor
from hpc_es.policies.networks.feed_forward import PolicyOptions
from hpc_es.policies.networks.heads import ActionHead, FirstOutputs, Head, PureHead
from hpc_es.policies.networks.network import KEY, Network, array_text

FILE_SUFFIX = ".keras"
SEED = "seed"
# arguments of the builder that network_kwargs cannot set
PASSED = ("observations", "outputs", SEED)
BACKENDS = backends_of("network")
if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = Literal[BACKENDS]


@options
class Options(PolicyOptions):
    """`policy:` with `kind: network`."""

    kind: Literal["network"] = option("name of the policy", "network")
    network: PathText = option(
        "'my_module:build', a function that returns a network, or a .keras file with one"
    )
    network_kwargs: Mapping[str, Any] = option(
        "further keywords of the function", default_factory=dict
    )
    backend: BackendName = option("library that computes the network", "jax")
    candidates_per_call: Together = option(
        "number of candidates that are computed together; results depend on it, not on chunks or ranks",
        16,
    )
    frozen: bool = option(
        "whether layers that act in training only are accepted: "
        "statistics of BatchNorm as constants, dropout without effect",
        False,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) for keywords that the function cannot get."""
        for name in PASSED:
            if name in self.network_kwargs:
                yield "network_kwargs", f"has {name!r}, which hpc_es passes itself: remove it"


class CompiledOptions(Protocol):
    """The options of policies whose network is compiled."""

    @property
    def action_noise_std(self) -> float:
        """Standard deviation of the noise on actions in training episodes."""
        ...

    @property
    def candidates_per_call(self) -> int:
        """Number of candidates that are computed together."""
        ...


class NetworkPolicy:
    """Normalisation of the observations, a network, an action head.

    The head gets the first `head.outputs` outputs; a network may have one more, the value of the
    observation.
    """

    rows_are_independent = True

    def __init__(
        self, options: CompiledOptions, spaces: Spaces, network: Network, head: Head
    ) -> None:
        self.options, self.spaces, self.network, self.head = options, spaces, network, head
        self.layout = network.layout
        self.action_noise_std = options.action_noise_std
        self.candidates_per_call = options.candidates_per_call
        self.compiled_by = network.backend
        # by the matrices of low rank
        self._low_rank_calls: dict[tuple[str, ...], CompiledCall] = {}

    def initial(self, rng: np.random.Generator) -> Float32:
        with restored_session(network_backend(self.network.backend)):
            return self.network.initial(rng)

    def _compiled(self, size: int | None, factored: Sequence[str] = ()) -> CompiledCall:
        """Return the compiled network, for `size` candidates or for rows with the same parameters.

        The matrices `factored` are taken as common weights and factors.
        """
        return network_backend(self.network.backend).call(self.network, size, factored)

    @cached_property
    def _call(self) -> CompiledCall:
        return self._compiled(self.candidates_per_call)

    @cached_property
    def _shared_call(self) -> CompiledCall:
        return self._compiled(None)

    def factored(self, matrices: Sequence[str]) -> tuple[str, ...]:
        """Return which of these matrices are evaluated from factors; the others are formed."""
        return network_backend(self.network.backend).factored(
            self.network, matrices, self.spaces.observations
        )

    def _call_for(self, parameters: Population) -> CompiledCall:
        if not isinstance(parameters, LowRank) or not parameters.matrices:
            return self._call
        matrices = tuple(parameters.matrices)
        if matrices not in self._low_rank_calls:
            factored = self.factored(matrices)
            self._low_rank_calls[matrices] = (
                self._compiled(self.candidates_per_call, factored) if factored else self._call
            )
        return self._low_rank_calls[matrices]

    def bind(self, parameters: Population, normaliser: Normaliser | None) -> Actor:
        return self.bind_with(self.head, parameters, normaliser)

    def bind_with(
        self, head: ActionHead, parameters: Population, normaliser: Normaliser | None
    ) -> Actor:
        """Return an actor with another head, such as one that samples actions."""
        return CompiledActor(
            self._call_for(parameters),
            parameters,
            self._taking_logits(head),
            normaliser,
            whole_elements(self.spaces.observations),
        )

    def bind_shared(self, head: ActionHead, theta: Float32, rows: int) -> Actor:
        """Return an actor whose rows all have the parameters theta, float32[params].

        This is faster, see `SharedActor`.
        """
        return SharedActor(self._shared_call, theta, rows, self._taking_logits(head))

    def _taking_logits(self, head: ActionHead) -> ActionHead:
        return FirstOutputs(head, self.head.outputs)

    def pure(self, xp: Any) -> Pure:
        return self.pure_with(self.head, xp)

    def pure_with(self, head: PureHead, xp: Any) -> Pure:
        """Return the pure functions with another head, such as one that returns logits."""
        from hpc_es.policies.networks.jax_convolutions import convolving_in_turn

        network_apply = convolving_in_turn(self.network.apply)

        def parameters(theta: Any) -> Any:
            return self.layout.split(theta, xp.reshape)

        def apply(parameters: Any, memory: Any, observation: Any) -> tuple[Any, Any]:
            outputs, after = network_apply(parameters, memory, observation)
            return after, head.pure(xp, outputs[: self.head.outputs].astype(np.float32))

        return Pure(parameters, apply, self.network.memory())


def computes(options: Options) -> Computes:
    """Return how a policy of this kind computes."""
    return Computes(
        backend=options.backend,
        backends=BACKENDS,
        any_chunks=True,
        custom=True,
        own_calls=("candidates_per_call",),
    )


def build(options: Options, spaces: Spaces) -> NetworkPolicy:
    """Return the policy; ConfigError if the network cannot be built or does not fit the spaces."""
    return _built(options, spaces, has_value=False)


def build_with_value(options: Options, spaces: Spaces) -> NetworkPolicy:
    """Return the policy with a network that has one more output, the value.

    Raises:
        ConfigError: as in `build`.
    """
    return _built(options, spaces, has_value=True)


def _built(options: Options, spaces: Spaces, has_value: bool) -> NetworkPolicy:
    head = Head.of(spaces.actions, options.action_bins, options.action_bounds)
    outputs = head.outputs + has_value
    library = _prepared_backend(options)
    function = _builder(options, library, spaces.observations, outputs)
    with restored_session(library):
        network, again = (
            library.network(function, options.network, spaces.observations, options.frozen)
            for _ in range(2)
        )
        if network.backend != options.backend:
            raise ConfigError(
                [
                    (
                        "policy.backend",
                        f"is {options.backend}, but {options.network} returns a network in "
                        f"{network.backend}: expected {network.backend}",
                    )
                ]
            )
        text = _outputs_text(spaces, head) + (
            ", and the value of the observation" if has_value else ""
        )
        library.check(network, again, options.network, spaces.observations, outputs, text)
    return NetworkPolicy(options, spaces, network, head)


def _outputs_text(spaces: Spaces, head: Head) -> str:
    """Return a description of the outputs, for messages."""
    if not isinstance(spaces.actions, Box):
        return f"a logit for each action of {spaces.actions}"
    actions = len(spaces.actions.low)
    return f"a Box of {actions}" + (f", {head.bins} bins each" if head.bins else "")


def _prepared_backend(options: Options) -> NetworkBackend:
    """Return the backend, set up like that of Keras before the module of the user imports them."""
    library = set_up(options.backend)
    if not library.has_keras:
        return library
    if (keras := sys.modules.get("keras")) is None:
        os.environ["KERAS_BACKEND"] = options.backend
    elif options.network.endswith(FILE_SUFFIX) and keras.backend.backend() != options.backend:
        used = keras.backend.backend()
        raise ConfigError(
            [
                (
                    "policy.backend",
                    f"is {options.backend}, but Keras has one backend per process, here {used}: "
                    f"expected {used}",
                )
            ]
        )
    return library


@contextlib.contextmanager
def restored_session(library: NetworkBackend | None = None) -> Iterator[None]:
    """Restore what building a network resets.

    These are the global generators, also that of the library if it is given, and Keras' counters of
    names and its seeds.
    """
    state = sys.modules.get("keras.src.backend.common.global_state")
    before = (
        {name: value for name, value in vars(state).items() if isinstance(value, threading.local)}
        if state
        else {}
    )
    try:
        with restored_generators(), library.restored() if library else contextlib.nullcontext():
            yield
    finally:
        if state is not None:
            vars(state).update(before)


def _builder(
    options: Options, library: NetworkBackend, observations: ObservationSpec, outputs: int
) -> Callable[[int], Any]:
    """Return a function from a seed to the network that the user's function returns."""
    if options.network.endswith(FILE_SUFFIX):
        from hpc_es.policies.networks.keras_loading import load_model

        try:
            path = _keras_file(options.network, config_directory())
        except ValueError as error:
            raise ConfigError([(KEY, str(error))]) from error
        return lambda seed: load_model(path)
    function = import_function(options.network, KEY, "my_net:build")
    keywords = {**options.network_kwargs}
    takes_seed = _takes_seed(function)

    def call(seed: int) -> Any:
        seed_generators(seed)
        library.seed(seed)
        try:
            return function(
                observations,
                outputs,
                **copy.deepcopy(keywords),
                **({SEED: seed} if takes_seed else {}),
            )
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # of the user's code
            text = f"{options.network} fails for observations {array_text(observations)} and {outputs} outputs"
            expected = (
                f"expected a function of ({', '.join(['observations', 'outputs', *keywords])})"
            )
            text = f"{text}: {failure_from_error(error).text}: {expected} that returns a network"
            raise ConfigError([(KEY, text)]) from error

    return call


def _takes_seed(function: Callable[..., Any]) -> bool:
    try:
        return SEED in inspect.signature(function).parameters
    except (ValueError, TypeError):  # compiled functions may have none
        return False


def seed_generators(seed: int) -> None:
    """Seed the generators that Keras and NumPy code use, so that every rank builds the same.

    The counters in the names of Keras layers start again, too. `keras.utils.set_random_seed` would
    load TensorFlow.
    """
    random.seed(seed)
    np.random.seed(seed)
    if (keras := sys.modules.get("keras")) is not None:
        dtypes = keras.config.dtype_policy()
        keras.utils.clear_session(free_memory=False)
        keras.config.set_dtype_policy(dtypes)


def _keras_file(name: str, directory: Path) -> Path:
    """Return the path of a Keras file, in the directory of the config.

    It is in the current directory if it is only there.
    """
    name = expanded(name)
    path = directory / name
    return path if path.is_file() or not Path(name).is_file() else followed(name)


def sources(section: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """Return the SHA-256 of the Keras file, or of the module that builds the network.

    The module is not imported.
    """
    name = str(section.get("network", ""))
    if not name.endswith(FILE_SUFFIX):
        return {name: source_hash(name)}
    try:
        path = _keras_file(name, directory)
    except ValueError:  # a variable that is not set here
        return {name: ""}
    return {name: sha256_of(path) if path.is_file() else ""}
