"""Runs with effects, while workers and the database die: `python -m benchmarks soak`.

`target` counts what was applied, `worker` is the program that is killed, `faults` kill, `run`
starts the work and judges its end, and `command` is the command line.
"""
