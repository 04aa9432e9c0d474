"""Where the messages of sessions go."""
