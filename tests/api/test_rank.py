"""`hpc_es.rank` and `hpc_es.is_main` in scripts that run on all ranks."""

from __future__ import annotations

from tests.helpers.harness import mpiexec, python, script

MINIMIZE = """
    import sys
    import numpy as np
    import hpc_es
    from hpc_es.mpi import connect

    before = hpc_es.rank(), hpc_es.is_main()
    best = hpc_es.minimize(lambda x: float((x**2).sum()), np.ones(2), 0.3, max_evaluations=60)
    assert before == (hpc_es.rank(), hpc_es.is_main())
    sys.stderr.write(f"rank {hpc_es.rank()} of {connect.joined().size}\\n")
    if hpc_es.is_main():
        print(f"{best.evaluations} evaluations")
"""


def test_script_on_two_ranks_prints_once() -> None:
    done = mpiexec(2, script(MINIMIZE))
    assert done.status == 0, str(done)
    assert done.stdout == "60 evaluations\n"
    assert sorted(done.stderr.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_error_on_one_rank_after_the_call_ends_all_ranks() -> None:
    """Rank 0 waits for rank 1 in minimize."""
    text = """
        import hpc_es
        if not hpc_es.is_main():
            raise ValueError("only here")
        hpc_es.minimize(lambda x: 0.0, [0.0], 1.0)
    """
    done = mpiexec(2, script(text), timeout_seconds=60)
    assert done.status not in (0, None) and not done.timed_out, str(done)
    assert "ValueError: only here" in done.stderr and "[rank 1 of 2 on " in done.stderr


def test_mpi_is_not_started_without_a_launcher() -> None:
    text = "import sys, hpc_es; print(hpc_es.rank(), hpc_es.is_main(), 'mpi4py' in sys.modules)"
    done = python(["-c", text])
    assert (done.status, done.stdout) == (0, "0 True False\n"), str(done)
