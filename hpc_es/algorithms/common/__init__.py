"""Parts that several strategies share: ranking, antithetic pairs, optimizers, covariance,
stopping criteria.
"""
