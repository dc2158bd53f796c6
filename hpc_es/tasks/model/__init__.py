"""The task `model`: the parameters of a model, scored on batches of data in compiled calls."""
