"""CMA-ES: constants and generations against numbers of independent implementations, what ends a search, restarts."""

from __future__ import annotations

import numpy as np
import pytest

from hpc_es.algorithms.parts.covariance import constants, products, root_of
from tests.algorithms.stepping import Waves, after, elli, strategy

CONSTANTS = {  # size, population: mueff, c_s, d_s, c_c, c_1, c_mu, chi, of pycma's equations
    (2, 6): (2.028611465, 0.4462049874, 1.446204987, 0.624554539, 0.1548153999, 0.08559277943, 1.254272743),
    (3, 7): (2.254815082, 0.4149090011, 1.414909001, 0.5588013229, 0.09640963258, 0.06958846923, 1.59687753),
    (10, 10): (3.167299281, 0.2844285879, 1.284428588, 0.294990383, 0.01528382452, 0.02355177665, 3.084726565),
    (40, 15): (4.540915209, 0.1320305687, 1.132030569, 0.09300921663, 0.001169432725, 0.003405219644, 6.28521508),
}


@pytest.mark.parametrize(("size", "population"), CONSTANTS)
def test_the_constants_are_those_of_the_tutorial(size: int, population: int) -> None:
    c = constants(size, population, True)
    found = (c.mueff, c.c_s, c.d_s, c.c_c, c.c_1, c.c_mu, c.chi)
    assert found == pytest.approx(CONSTANTS[size, population], rel=1e-8)
    assert c.mu == population // 2


def test_the_weights_of_six_and_seven_samples() -> None:
    six = [0.6370425712, 0.2845702574, 0.07838717132, -0.2863837826, -0.7649580941, -1.155981778]
    seven = [0.5856451065, 0.2928225533, 0.1215323402, 0, -0.4241269418, -0.7706638857, -1.063656697]
    assert constants(2, 6, True).weights == pytest.approx(six, rel=1e-8)
    assert constants(3, 7, True).weights == pytest.approx(seven, rel=1e-8, abs=1e-15)
    assert constants(3, 7, False).weights[4:].tolist() == [0, 0, 0]


def test_one_and_three_generations_of_the_ellipsoid() -> None:
    """Against a plain implementation of the tutorial, which agrees with the package cmaes."""
    made = strategy("cma_es", elli, np.ones(3), Waves(7, 3), sigma=0.5)
    one, three = after(made, 1), after(made, 3)
    assert one.theta == pytest.approx([1.170802695, 1.27935964, 0.4590352517], rel=1e-8)
    assert float(one.shared["sigma"]) == pytest.approx(0.4948117169, rel=1e-8)
    assert one.master["sigma_path"] == pytest.approx([0.4159907821, 0.6803817445, -1.31752224], rel=1e-8)
    assert one.master["covariance_path"] == pytest.approx([0.4603316325, 0.7529042774, -1.45795818], rel=1e-8)
    upper = [1.006265061, 0.06072827701, 0.0003708880453, 1.059829955, -0.06011925858, 1.015821006]
    assert one.master["covariance"][np.triu_indices(3)] == pytest.approx(upper, rel=1e-7)
    assert three.theta == pytest.approx([1.207623925, 1.423177212, 0.09356775357], rel=1e-8)
    assert float(three.shared["sigma"]) == pytest.approx(0.5594227284, rel=1e-8)
    upper = [1.029740871, -0.2013993546, -0.2048561498, 1.185353033, -0.1039687523, 0.9708906404]
    assert three.master["covariance"][np.triu_indices(3)] == pytest.approx(upper, rel=1e-8)


def test_a_product_has_the_bits_of_any_company() -> None:
    rng = np.random.default_rng(0)
    root = root_of(np.cov(rng.standard_normal((40, 60))))[0]
    drawn = rng.standard_normal((20, 40)).astype(np.float32)
    whole = products(drawn, 3, root)
    for sample in range(20):
        assert products(drawn[sample : sample + 1], 3 + sample, root).tobytes() == whole[sample].tobytes()
    np.testing.assert_allclose(whole, drawn @ root, rtol=1e-12, atol=1e-12)
