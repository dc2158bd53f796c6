"""The lightest beam that is stiff enough, by CMA-ES under libEnsemble."""

from gest_api.vocs import VOCS
from libensemble import Ensemble
from libensemble.alloc_funcs.start_only_persistent import only_persistent_gens
from libensemble.specs import AllocSpecs, ExitCriteria, GenSpecs, LibeSpecs, SimSpecs

from hpc_es.api.gest import Generator

VARIABLES = VOCS(
    variables={"width": [1.0, 10.0], "height": [1.0, 10.0], "flanges": {1.0, 2.0, 3.0}},
    objectives={"mass": "MINIMIZE"},
    constraints={"bending": ["LESS_THAN", 1.0]},
)
POPULATION = 8


def simulate(point: dict) -> dict:
    """Return mass and bending of a beam."""
    mass = point["width"] * point["height"] * (1 + 0.2 * (point["flanges"] - 1))
    return {
        "mass": mass,
        "bending": 500 / (point["width"] * point["height"] ** 3 * point["flanges"] ** 0.2),
    }


def main() -> None:
    ensemble = Ensemble(
        gen_specs=GenSpecs(
            generator=Generator(VARIABLES, seed=1, population_size=POPULATION),
            vocs=VARIABLES,
            initial_batch_size=POPULATION,
            batch_size=POPULATION,
        ),
        sim_specs=SimSpecs(simulator=simulate, vocs=VARIABLES),
        alloc_specs=AllocSpecs(alloc_f=only_persistent_gens),
        exit_criteria=ExitCriteria(sim_max=60 * POPULATION),
        libE_specs=LibeSpecs(
            comms="local", nworkers=2, disable_log_files=True, save_H_and_persis_on_abort=False
        ),
    )
    history, _, _ = ensemble.run()
    feasible = history[history["sim_ended"] & (history["bending"] < 1)]
    best = feasible[feasible["mass"].argmin()]
    sizes = f"width {best['width']:.3f}, height {best['height']:.3f}, {best['flanges']:g} flanges"
    print(f"mass {best['mass']:.3f}: {sizes}")


if __name__ == "__main__":
    main()
