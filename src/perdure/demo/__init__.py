"""A refund agent that loses its process in the middle of a turn: `perdure demo`."""
