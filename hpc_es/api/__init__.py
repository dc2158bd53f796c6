"""The Python interface (train, minimize, Strategy, evaluation) and the job of the command line."""
