"""The tags of messages between two ranks, each with what the message has."""

from enum import IntEnum


class Tag(IntEnum):
    """From a worker to rank 0 unless stated otherwise."""

    AHEAD = 1  # the worker begins its chunk and may get another one
    FREE = 2  # the worker has no chunk
    ANSWER = 3  # from rank 0: the number of a chunk, or that there are none left
    GIVE_UP = 4  # the worker received a second signal
    FAILED = 5  # why the worker is about to end the job, as bytes of text
    CLOSE = 6  # from rank 0: the generation is closed, and the rest of the chunk given up
    LONG = 7  # a chunk that takes long: its first job, its jobs, and the polls so far
    TASK = 8  # from rank 0: what the worker computes next, encoded arrays
    RESULT = 9  # the results of a task, encoded arrays
