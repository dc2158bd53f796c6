"""The ground that everything stands on: interfaces, keys, errors. It imports nothing of ours but itself."""
