"""The strategies on functions, beside other implementations of them: what they solve, what they cost, how they scale.

    python -m benchmarks.functions bbob --jobs 2      BBOB functions, every strategy beside pycma: trials into a file
    python -m benchmarks.functions tables             of these trials: Markdown tables, a CSV file, data profiles
    python -m benchmarks.functions cost               seconds of a generation that are the strategy's own, beside pycma
    python -m benchmarks.functions ranks              evaluations a second on two ranks over those of two bare loops

pycma and the BBOB functions come with `pip install -e '.[oracles]'`; `make bench-functions` does all of it.
"""
