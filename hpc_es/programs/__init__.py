"""Program synthesis: coding tasks, the interpreter, and the algorithms that write programs."""
