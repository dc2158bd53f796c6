"""One program per package, run by the Python of its virtual environment."""
