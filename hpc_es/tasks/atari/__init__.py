"""`task: {kind: atari}`: Atari 2600 games of the Arcade Learning Environment, by pixels."""
