"""evosax: OpenAI-ES on its problems for gymnax and Brax, with one compiled call per generation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import Open_ES
from evosax.problems import BraxProblem, GymnaxProblem
from evosax.problems.networks import MLP, categorical_output_fn, tanh_output_fn

from benchmarks.peers.reporter import Reporter, read_arguments


def problem_of(work: dict[str, Any]) -> Any:
    """Return the problem, without normalisation of observations."""
    library, _, name = work["environment"].partition(":")
    if library == "brax":
        import brax.envs

        environment = brax.envs.get_environment(name, backend="spring")
        network = MLP((*work["hidden"], environment.action_size), output_fn=tanh_output_fn)
        settings = {
            "episode_length": work["limit"],
            "env_kwargs": {"backend": "spring"},
            "use_normalize_obs": False,
        }
        return BraxProblem(name, network, **settings)
    import gymnax

    environment, params = gymnax.make(name)
    space = environment.action_space(params)
    discrete = hasattr(space, "n")
    outputs, output_fn = (
        (int(space.n), categorical_output_fn) if discrete else (space.shape[0], tanh_output_fn)
    )
    return GymnaxProblem(
        name, MLP((*work["hidden"], outputs), output_fn=output_fn), use_normalize_obs=False
    )


def steps_of(problem: Any, fitness: Any, states: Any) -> Any:
    """Return the number of steps of first episodes."""
    if isinstance(problem, BraxProblem):
        done = states.done  # [members, rollouts, steps]
        return ((jnp.cumsum(done, -1) - done) == 0).sum()
    if problem.env_name == "CartPole-v1":
        return fitness.sum()  # the reward is 1 per step
    return fitness.size * problem.episode_length  # of equal length


def main() -> None:
    """Run generations until the reporter stops them."""
    work = read_arguments()
    problem = problem_of(work)
    key = jax.random.key(1)
    solution = problem.sample(key)
    search = Open_ES(
        work["population"],
        solution,
        optimizer=optax.adam(0.02),
        std_schedule=optax.constant_schedule(0.1),
    )
    params = search.default_params

    @jax.jit
    def generation(key: Any, state: Any, problem_state: Any) -> Any:
        key, asking, evaluating, telling = jax.random.split(key, 4)
        population, state = search.ask(asking, state, params)
        fitness, problem_state, info = problem.eval(evaluating, population, problem_state)
        state, _ = search.tell(telling, population, -fitness, state, params)
        return key, state, problem_state, steps_of(problem, fitness, info["env_states"])

    state, problem_state = search.init(key, solution, params), problem.init(key)
    reporter, total, goes_on = Reporter(work["seconds"]), 0, True
    while goes_on:
        key, state, problem_state, steps = generation(key, state, problem_state)
        total += int(steps)
        goes_on = reporter.report(total)


if __name__ == "__main__":
    main()
