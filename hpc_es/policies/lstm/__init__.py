"""`policy: {kind: lstm}`: a recurrent network."""

from hpc_es.policies.lstm.policy import LSTM, Options, build

__all__ = ["LSTM", "Options", "build"]
