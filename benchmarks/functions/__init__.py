"""Benchmarks of the strategies on functions: success rates, cost per generation and scaling,
compared with pycma.

    python -m benchmarks.functions bbob --jobs 2      run all strategies and pycma on BBOB functions
    python -m benchmarks.functions tables             Markdown tables, a CSV file and data profiles
                                                      of these trials
    python -m benchmarks.functions cost               seconds per generation without the function
    python -m benchmarks.functions mixed              evaluations on mixed-integer functions, beside
                                                      cmaes and pycma
    python -m benchmarks.functions constrained        evaluations on constrained functions, beside
                                                      pycma
    python -m benchmarks.functions noisy              mean ranks on bbob-noisy, beside pycma, cmaes
                                                      and methods of a paper
    python -m benchmarks.functions ranks              evaluations per second on two ranks, relative
                                                      to two bare loops

`pip install -e '.[oracles]'` installs pycma and the BBOB functions; `make bench-functions` runs
everything.
"""
