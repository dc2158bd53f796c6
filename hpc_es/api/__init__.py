"""What users call from Python, and the command of a job: train, minimize, Strategy, evaluation, repetitions."""
