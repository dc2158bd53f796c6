"""Many runs: the command line of training, repetitions, requeueing, the library call."""
