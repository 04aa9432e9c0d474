from __future__ import annotations


def place_of(run_id: str, step_id: str, sequence: int) -> str:
    """Return the name of an operation in messages, and what seals its values to their row."""
    return f"operation {run_id}/{step_id}/{sequence}"


def input_of(what: str) -> str:
    """Return the place of what a run or an operation was given."""
    return f"the input of {what}"


def output_of(run_id: str) -> str:
    """Return the place of what a run came to."""
    return f"the output of {run_named(run_id)}"


def payload_of(operation: str) -> str:
    """Return the place of what an operation came to."""
    return f"the payload of {operation}"


def problem_of(run_id: str) -> str:
    """Return the place of why a run failed or needs attention."""
    return f"the problem of {run_named(run_id)}"


def delay_of(operation: str, wake_at: float | None, awaits: str | None = None) -> str:
    """Return the place of what a delay or a wait was asked, with what ends it."""
    ends = "" if wake_at is None else float(wake_at)
    return f"the delay of {operation}|{ends}" + ("" if awaits is None else f"|{awaits}")


def digest_of(what: str, *facts: object) -> str:
    """Return the place of the digest of what was given, with what else its row says."""
    return f"the input digest of {what}|{'|'.join(map(str, facts))}"


def given_of(run_id: str, function: str, version: int) -> str:
    """Return the place of the digest of what a run was given, with the function that got it."""
    return digest_of(run_named(run_id), function, version)


def run_named(run_id: str) -> str:
    """Return the name of a run in messages, and what seals its values to their row."""
    return f"run {run_id}"
