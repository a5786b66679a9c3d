"""What is claimed about klover, measured: run from a clone of the repository, ``python -m benchmarks COMMAND``."""
