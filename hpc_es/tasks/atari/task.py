"""The task `atari`: episodes of an Atari 2600 game.

They are played in lockstep by `tasks/episodes/rollout.py`. The result of a job depends on its
parameters and seeds only. ale_py is imported when the task is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hpc_es.config.options import Count, Fraction, Natural, option, options
from hpc_es.config.schema import NO_NUMBERS, Reduction
from hpc_es.core.data import (
    Column,
    Discrete,
    ObservationSpec,
    Outcome,
    Poll,
    Spaces,
    behaviour,
    info_numbers,
)
from hpc_es.core.declarations import Offers, Searched
from hpc_es.core.errors import ConfigError, as_yaml, missing_text, nearest
from hpc_es.core.keys import Keys
from hpc_es.core.policy import Actor, Batch, Policy
from hpc_es.tasks.episodes.behaviour import BehaviourOptions, behaviour_from_options
from hpc_es.tasks.episodes.quantities import (
    EpisodeQuantities,
    EpisodeQuantityOptions,
    declared,
    group_of_infos,
)
from hpc_es.tasks.episodes.rollout import EpisodeSegments, Rollout
from hpc_es.tasks.problems import (
    ObservationNormalization,
    PolicyProblem,
    PolicyTrajectories,
    refuse_common_seeds,
    refuse_normalization,
    refuse_quantities,
)

if TYPE_CHECKING:
    from hpc_es.tasks.atari.backend import AtariBackend, AtariEnvironment
    from hpc_es.tasks.atari.images import Resize

OFFERS = Offers(
    problems=("vectors", "trajectories"),
    policy=True,
    any_chunks=True,
    info=True,
    single_episodes={"episodes_per_job": 1, "on_failed_episode": "drop"},
)

# Defaults of the options that a protocol determines.
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    # Machado et al. 2018, arXiv:1709.06009: stochasticity by sticky actions, all 18 actions, 5
    # minutes of play
    "machado2018": {
        "frame_skip": 5,
        "sticky_actions": 0.25,
        "noop_max": 0,
        "fire_reset": False,
        "full_action_space": True,
        "max_frames": 18_000,
    },
    # Salimans et al. 2017, arXiv:1703.03864, with the preprocessing of Mnih et al. 2015. The paper
    # adapts the time limit; 5,000 steps are those of the replication by Such et al. 2017,
    # arXiv:1712.06567.
    "salimans2017": {
        "frame_skip": 4,
        "sticky_actions": 0.0,
        "noop_max": 30,
        "fire_reset": False,
        "full_action_space": False,
        "max_frames": 20_000,
    },
}

# Defaults of the options that a picture determines.
PICTURES: Mapping[str, Mapping[str, int]] = {
    "standard": {"height": 84, "width": 84, "stack": 4},  # Mnih et al. 2015
    "a3c": {"height": 42, "width": 42, "stack": 1},  # OpenAI's universe-starter-agent
}


@options
class Options(EpisodeQuantityOptions):
    """`task:` with `kind: atari`."""

    fresh_environment: ClassVar[bool] = False  # a game keeps no state between episodes

    kind: Literal["atari"] = option("name of the task", "atari")
    game: str = option("game in snake_case, such as pong or ms_pacman")
    protocol: Literal["machado2018", "salimans2017"] = option(
        "published protocol, which determines the defaults of the options below that are null",
        "machado2018",
    )
    frame_skip: Count | None = option(
        "number of frames for which an action is repeated; null: the protocol's", None
    )
    sticky_actions: Fraction | None = option(
        "probability that a frame repeats the action of the frame before; null: the protocol's",
        None,
    )
    noop_max: Natural | None = option(
        "an episode begins with a random number of no-op frames below this one; null: the protocol's",
        None,
    )
    fire_reset: bool | None = option(
        "whether an episode begins with FIRE, in games that have this action; null: the protocol's",
        None,
    )
    full_action_space: bool | None = option(
        "whether there are all 18 actions, or only those that the game uses; null: the protocol's",
        None,
    )
    max_frames: Count | None = option(
        "time limit of an episode in frames; null: the protocol's", None
    )
    episodic_life: bool = option("whether a training episode ends when a life is lost", False)
    reward_clipping: bool = option(
        "whether rewards of training are clipped to -1, 0 and 1 per step", False
    )
    picture: Literal["standard", "a3c"] = option(
        "standard: the whole screen, as the maximum of the last two frames; a3c: rows 34 to 193 of the last frame, "
        "reduced to 80 x 80 and then to height x width, as in OpenAI's universe-starter-agent",
        "standard",
    )
    height: Count | None = option(
        "height of an observation in pixels, at most 210 (a3c: 80); null: that of the picture (84; a3c: 42)",
        None,
    )
    width: Count | None = option(
        "width of an observation in pixels, at most 160 (a3c: 80); null: that of the picture (84; a3c: 42)",
        None,
    )
    stack: Count | None = option(
        "number of images in an observation, the oldest first; null: that of the picture (4; a3c: 1)",
        None,
    )
    grayscale: bool = option(
        "one channel per image with the luminance (a3c: the mean of the three colours); false: three channels",
        True,
    )
    episodes_per_job: Count = option(
        "number of episodes per job; the return of a job is their mean", 1
    )
    common_seeds: bool = option(
        "whether all candidates of a generation play the same episodes (common random numbers), instead of each its own",
        False,
    )
    reward_offset: float = option(
        "number added to the reward of each training step, such as -1", 0.0
    )
    on_failed_episode: Literal["drop", "abort"] = option(
        "action after an exception in an episode: leave the job out of the update, or end the run",
        "drop",
        may_change=True,
    )
    observation_normalization: ObservationNormalization = option(
        "normalisation of the observations", default_factory=ObservationNormalization
    )
    behaviour: BehaviourOptions | None = option(
        "numbers that describe an episode, for novelty search: "
        "final_observation, info (such as ram) or function; null: none",
        None,
    )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) if all episodes are the same."""
        chosen = protocol_options(self)
        if not chosen["sticky_actions"] and chosen["noop_max"] <= 1:
            yield (
                "noop_max",
                f"is {chosen['noop_max']} and sticky_actions 0: every episode begins and continues alike",
            )


def protocol_options(options: Options) -> dict[str, Any]:
    """Return the options that a protocol determines, with the values that replace null."""
    return _chosen(options, PROTOCOLS[options.protocol])


def picture_options(options: Options) -> dict[str, int]:
    """Return the options that a picture determines, with the values that replace null."""
    return _chosen(options, PICTURES[options.picture])


def _chosen(options: Options, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the names of `defaults`, which replace null."""
    values = {name: getattr(options, name) for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in values.items()}


class Atari:
    """The task. It keeps its games from chunk to chunk; `info` are the numbers of `report.info`."""

    def __init__(self, options: Options, info: Mapping[str, Reduction] = NO_NUMBERS) -> None:
        if text := missing_text("ale_py"):
            raise ConfigError([("task.kind", f"is atari, which needs {text}")])
        from hpc_es.tasks.atari.backend import INFO_KEYS
        from hpc_es.tasks.atari.game import Game, GameSettings
        from hpc_es.tasks.atari.images import A3CPicture, AreaResize

        self.options, self.name, self.info = options, options.game, info
        self.episodes_per_job = options.episodes_per_job
        if unknown := [key for key in info if key not in INFO_KEYS]:
            text = f"the infos of Atari games have no {unknown[0]!r} (they have: {', '.join(INFO_KEYS)})"
            raise ConfigError([("report.info", text + nearest(unknown[0], INFO_KEYS))])
        picture, is_standard = picture_options(options), options.picture == "standard"
        size = picture["height"], picture["width"]
        self._settings = GameSettings(
            name=options.game,
            grayscale=options.grayscale and is_standard,
            pools=is_standard,
            **protocol_options(options),
        )
        game = Game(self._settings)
        if is_standard:
            require_smaller(size, game.size, f"the screen of {self.name}")
            self._resize: Resize = AreaResize(game.size, size)
        else:
            require_smaller(
                size, (A3CPicture.HALF, A3CPicture.HALF), "the halved picture of task.picture: a3c"
            )
            self._resize = A3CPicture(size, options.grayscale)
        self._shape = (*size, picture["stack"] * (1 if options.grayscale else 3))
        self.spaces = Spaces(
            ObservationSpec(self._shape, np.dtype(np.uint8)), Discrete(game.actions)
        )
        self.behaviour = behaviour_from_options(
            options.behaviour, self.spaces.observations.size, self.environment
        )
        behaviours = 0 if self.behaviour is None else self.behaviour.size
        self.quantities = EpisodeQuantities.of(options, self.spaces.observations.size, behaviours)
        keys = [key for _, key, _ in self.quantities.infos]
        if unknown := [key for key in keys if key not in INFO_KEYS]:
            text = f"the infos of Atari games have no {unknown[0]!r} (they have: {', '.join(INFO_KEYS)})"
            raise ConfigError(
                [(f"task.{group_of_infos(options)}", text + nearest(unknown[0], INFO_KEYS))]
            )
        self.info_keys = (*info, *keys)
        self.time_limit = -(-self._settings.max_frames // self._settings.frame_skip)  # in steps
        self._backend = self.new_backend()

    @property
    def check_lines(self) -> tuple[str, ...]:
        """Lines for `--check`."""
        o = self.options
        values = {
            **protocol_options(o),
            "episodic_life": o.episodic_life,
            "reward_clipping": o.reward_clipping,
        }
        listed = ", ".join(f"{name} {as_yaml(value)}" for name, value in values.items())
        picture = ", ".join(f"{name} {value}" for name, value in picture_options(o).items())
        return (
            f"atari {self.name}, protocol {o.protocol}: {listed}",
            f"picture {o.picture}: {picture}",
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of rows in addition to those of all episodes."""
        columns = () if self.behaviour is None else (behaviour(self.behaviour.size),)
        columns = (*columns, *self.quantities.quantities.columns)
        return (*columns, info_numbers(len(self.info))) if self.info else columns

    def problem(
        self, searched: Searched, policy: Policy | None, keys: Keys, unit: int
    ) -> PolicyProblem | PolicyTrajectories:
        """Return the problem of the policy's parameters as a vector, or of its trajectories."""
        assert policy is not None
        normalization = self.options.observation_normalization
        if searched == "vectors":
            quantities = self.quantities.quantities
            problem = PolicyProblem(
                self, policy, keys, normalization, unit, self.columns, "free", quantities
            )
            problem.common_seeds = self.options.common_seeds
            return problem
        refuse_common_seeds(self.options.common_seeds)
        refuse_normalization(normalization)
        refuse_quantities(self.quantities.quantities)
        return PolicyTrajectories(
            self, policy, self.time_limit, segments=self.segments, columns=self.columns
        )

    def segments(self) -> EpisodeSegments:
        """Return new games, whose training episodes continue from batch to batch."""
        backend = self.new_backend()
        self._set_training(backend, True)
        return EpisodeSegments(self, backend)

    def _set_training(self, backend: AtariBackend, training: bool) -> None:
        backend.clips_rewards = training and self.options.reward_clipping
        backend.ends_with_life = training and self.options.episodic_life

    def new_backend(self) -> AtariBackend:
        """Return a new environment backend."""
        from hpc_es.tasks.atari.backend import AtariBackend

        return AtariBackend(self._settings, self._resize, self._shape, self.info_keys)

    def environment(self, render_mode: str | None = None, wrapped: bool = True) -> AtariEnvironment:
        """Return a new Gymnasium environment, which plays the episodes of evaluations.

        There are no wrappers.
        """
        from hpc_es.tasks.atari.backend import AtariEnvironment

        return AtariEnvironment(self._settings, self._resize, self._shape, render_mode)

    def evaluate(self, actor: Actor, batch: Batch, poll: Poll) -> Outcome:
        """Play the episodes of all jobs.

        Evaluations play whole games, and their returns are scores.
        """
        self._set_training(self._backend, batch.training)
        with self._backend.chunk(batch.seeds[:, 0].tolist()):
            return Rollout(self, self._backend, actor, batch).run(poll)

    def close(self) -> None:
        """Delete the games."""
        self._backend.close()


def require_smaller(size: tuple[int, int], limits: tuple[int, int], name: str) -> None:
    """Raise ConfigError if height or width of an observation exceed the limits.

    `name` is what has this size.
    """
    problems = [
        (f"task.{key}", f"is {value}, but {name} has {limit}: expected at most {limit}")
        for key, value, limit in zip(("height", "width"), size, limits, strict=True)
        if value > limit
    ]
    if problems:
        raise ConfigError(problems)


def offers(options: Options) -> Offers:
    """Return the capabilities under these options."""
    limit = options.observation_normalization.limit
    return replace(OFFERS, quantities=declared(options), observation_limit=limit)


def build(
    options: Options, repetition: int = 0, info: Mapping[str, Reduction] = NO_NUMBERS
) -> Atari:
    """Return the task, which is the same in all repetitions.

    `info` are the numbers of `report.info`.
    """
    return Atari(options, info)
