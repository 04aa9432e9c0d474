"""What perdure's promises cost, each figure beside its floor: `python -m benchmarks`."""
