"""What people saw of runs: the messages of a session, read into the conversation they make."""
