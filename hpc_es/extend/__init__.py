"""The public module for user-defined tasks, policies, algorithms and noises, and for packages that
bring some; other modules of hpc_es may change.

**Contracts.** The interfaces between the parts of a run. `Algorithm`, `Task`, `Problem` and its
three kinds, `Policy`, `Actor` and `Noise` are protocols: a class needs their methods, but need not
inherit from them. An algorithm declares its requirements as `Needs`, a task its capabilities as
`Offers`, and a policy how it `Computes`; nothing else of hpc_es reads their options, so that these
may have any names.

**Data.** Arguments and results of the methods of the contracts. A `State` is passed from generation
to generation. A `Chunk` is a range of consecutive jobs that one rank evaluates; a problem gets it
as `Jobs` and returns an `Outcome` with one row per job (`Rows`). `Results` are those of a whole
generation. A `Population` describes the candidates of a chunk, and a `Layout` the named parts of a
candidate. `Spaces` are the observations and actions of a policy.

**Options.** `options` makes a class a frozen dataclass of options, `option` defines one of its
fields, and types such as `Count` and `Positive` restrict values. Errors are reported before a run
starts, with the key and a remedy.

**Base classes.** They implement the methods that most kinds do not need to define: `BaseStrategy`
for all algorithms, `PairedStrategy` for algorithms that weight directions, such as ES,
`DistributionStrategy` for algorithms that adapt a normal distribution, such as CMA-ES, with
restarts and stopping criteria; `FeedForwardPolicy` for policies without memory; `ProblemDefaults`
and `VectorProblemDefaults` for problems, `VectorTask` for tasks without a policy; `BlockNoise` for
noises.

**Randomness.** `Keys` computes every random number from its `Purpose`, generation and index.

**Parts of policies and strategies.** `Head` maps the outputs of a network to actions, `normalise`
maps observations to inputs. `Pairs`, ranks and utilities, and optimizers are the building blocks of
the package's own strategies.

**Packages.** An `Extension` declares the kinds and commands of a package. What its commands and
pictures need is in `hpc_es.extend.runs` and `hpc_es.extend.reports`; what few kinds need is in
`hpc_es.extend.optimizers`, `.episodes` and `.compiled`.

Importing this module imports neither TensorFlow, JAX, h5py nor mpi4py.
"""

from __future__ import annotations

from hpc_es.algorithms.cma_es import CMAES
from hpc_es.algorithms.cma_es import Options as CMAOptions
from hpc_es.algorithms.common.distribution import DistributionStrategy, Ranked, Search
from hpc_es.algorithms.common.distribution import Options as DistributionOptions
from hpc_es.algorithms.common.optimizers import Options as OptimizerOptions
from hpc_es.algorithms.common.optimizers import initial_slots, learning_rate, norm
from hpc_es.algorithms.common.optimizers import slots_of as optimizer_slots
from hpc_es.algorithms.common.optimizers import step as optimizer_step
from hpc_es.algorithms.common.ranking import (
    Shaping,
    centered_ranks,
    default_population,
    nothing_to_learn,
    ranking,
    sample_weights,
    shaped,
    utilities,
)
from hpc_es.algorithms.common.stopping import View
from hpc_es.algorithms.common.strategy import (
    BaseStrategy,
    PairedStrategy,
    Pairs,
    Weights,
    first_deviations,
    round_of_jobs,
)
from hpc_es.config.options import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Probability,
    option,
    options,
    unused,
)
from hpc_es.core.data import (
    CORRECT,
    EPISODE_LENGTH,
    SIGN_RETURN,
    Actions,
    Array,
    Arrays,
    Box,
    Choices,
    Chunk,
    Column,
    Discrete,
    Float32,
    Float64,
    Jobs,
    Json,
    MultiDiscrete,
    Normaliser,
    ObservationSpec,
    Outcome,
    Poll,
    ProblemState,
    Results,
    Rows,
    Spaces,
    State,
    StructuredObservations,
    behaviour,
    cut,
    flat_observations,
    info_numbers,
    row_dtype,
    with_columns,
)
from hpc_es.core.declarations import (
    Computes,
    Metric,
    Needs,
    NoiseReport,
    Offers,
    Requirement,
    Setting,
)
from hpc_es.core.elites import BestMember, Division, Elites
from hpc_es.core.errors import (
    ConfigError,
    Failure,
    RunError,
    UserError,
    failure_from_error,
    failure_from_text,
)
from hpc_es.core.extensions import Extension, purpose_number
from hpc_es.core.interfaces import (
    Algorithm,
    AutomaticSizes,
    ClosableProblem,
    CompiledEpisodes,
    EvaluatesVectors,
    GradientAlgorithm,
    KeepsElites,
    NamesParameters,
    ProbesHiddenState,
    Problem,
    ProgramProblem,
    RecordingAlgorithm,
    RepeatsJobs,
    RunContext,
    SearchSize,
    StartsFromPoints,
    Task,
    TrajectoryProblem,
    VectorProblem,
)
from hpc_es.core.keys import Keys, Purpose
from hpc_es.core.policy import (
    Actor,
    Batch,
    OnStep,
    Policy,
    Pure,
    PurePolicy,
    RecurrentActor,
    ReferencePolicy,
    Segments,
    Traits,
    Tree,
)
from hpc_es.core.population import (
    Directions,
    Explicit,
    Factorisation,
    Layout,
    LowRank,
    Noise,
    Perturbed,
    Population,
    unperturbed,
)
from hpc_es.core.quantities import Quantities, feasible_first, measures_of, merits, violations
from hpc_es.core.tabulated import LastStepInputs, RewardTable, TabulatedEpisodes
from hpc_es.noise import BlockNoise, NoiseOptions
from hpc_es.policies.networks.feed_forward import FeedForwardPolicy
from hpc_es.policies.networks.heads import ActionHead, Head, normalise, normalised, require_flat
from hpc_es.policies.networks.network import Network
from hpc_es.tasks.problems import ProblemDefaults, VectorProblemDefaults, VectorTask

__all__ = [  # noqa: RUF022  (in the order of the groups above)
    # Contracts.
    "Actor",
    "Algorithm",
    "ClosableProblem",
    "Computes",
    "GradientAlgorithm",
    "RecordingAlgorithm",
    "Metric",
    "KeepsElites",
    "EvaluatesVectors",
    "NamesParameters",
    "Needs",
    "Network",
    "Noise",
    "NoiseReport",
    "Offers",
    "Policy",
    "ProbesHiddenState",
    "RepeatsJobs",
    "Requirement",
    "Setting",
    "StartsFromPoints",
    "AutomaticSizes",
    "SearchSize",
    "Problem",
    "ProgramProblem",
    "Pure",
    "PurePolicy",
    "RecurrentActor",
    "ReferencePolicy",
    "Task",
    "Traits",
    "TrajectoryProblem",
    "VectorProblem",
    "CompiledEpisodes",
    "TabulatedEpisodes",
    "RewardTable",
    "LastStepInputs",
    # Data: jobs and their results.
    "ProblemState",
    "Chunk",
    "Column",
    "Elites",
    "Division",
    "BestMember",
    "Quantities",
    "CORRECT",
    "cut",
    "EPISODE_LENGTH",
    "Failure",
    "failure_from_error",
    "failure_from_text",
    "Jobs",
    "Outcome",
    "Results",
    "Rows",
    "RunContext",
    "SIGN_RETURN",
    "State",
    "behaviour",
    "info_numbers",
    "feasible_first",
    "measures_of",
    "merits",
    "violations",
    "row_dtype",
    "with_columns",
    # Data: parameters and candidates.
    "Directions",
    "Explicit",
    "Factorisation",
    "Layout",
    "LowRank",
    "Perturbed",
    "Population",
    "unperturbed",
    # Data: observations, actions and episodes.
    "Actions",
    "Batch",
    "Box",
    "Choices",
    "Discrete",
    "MultiDiscrete",
    "Normaliser",
    "ObservationSpec",
    "OnStep",
    "Segments",
    "Spaces",
    "StructuredObservations",
    "flat_observations",
    # Data: types of arrays and functions.
    "Array",
    "Arrays",
    "Float32",
    "Float64",
    "Json",
    "Poll",
    "Tree",
    # Options and errors.
    "ConfigError",
    "Count",
    "Fraction",
    "Natural",
    "NonNegative",
    "Positive",
    "Probability",
    "RunError",
    "UserError",
    "option",
    "options",
    "unused",
    # Base classes.
    "BlockNoise",
    "CMAES",
    "CMAOptions",
    "NoiseOptions",
    "DistributionOptions",
    "DistributionStrategy",
    "FeedForwardPolicy",
    "PairedStrategy",
    "ProblemDefaults",
    "Ranked",
    "Search",
    "BaseStrategy",
    "VectorProblemDefaults",
    "VectorTask",
    "View",
    "Weights",
    # Randomness.
    "Keys",
    "Purpose",
    "purpose_number",
    # Packages.
    "Extension",
    # Parts of policies.
    "ActionHead",
    "Head",
    "normalise",
    "normalised",
    "require_flat",
    # Parts of strategies.
    "OptimizerOptions",
    "Pairs",
    "Shaping",
    "centered_ranks",
    "default_population",
    "first_deviations",
    "initial_slots",
    "learning_rate",
    "norm",
    "nothing_to_learn",
    "optimizer_slots",
    "optimizer_step",
    "ranking",
    "round_of_jobs",
    "sample_weights",
    "shaped",
    "utilities",
]
