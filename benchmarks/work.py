from __future__ import annotations

from perdure import effect, operation


@operation(read_only=True)
async def echo(payload: str) -> str:
    """Change nothing, and return what was given."""
    return payload


@effect(support="idempotent", target="bank")
async def charge(payload: str) -> str:
    """Stand for an effect, and return what was given."""
    return payload
