"""The agent of the demo in a chat page, whose worker people kill: `perdure demo --chat`."""
