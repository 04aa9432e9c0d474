from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from perdure.errors import InvalidFunction, InvalidInvocation

_DIGEST_CHARACTERS: Final = 40


class OperationIdentity(msgspec.Struct, frozen=True):
    """Which effect this is, however often it is tried and by whomever.

    `run_id` is the run, or outside of one whatever the effect belongs to: a task, an invoice.
    `idempotency_key` names the effect within it, `target` what it acts on ("bank", "mail"), and
    `ordinal` tells equal effects apart that are meant to happen more than once. Attempts and
    dispatches are no part of it: a retry must be recognised as the same effect.

    Raises `InvalidInvocation` for an empty part, one that is no text or holds a NUL, or an ordinal
    below 0.
    """

    run_id: str
    idempotency_key: str
    target: str
    ordinal: int = 1

    def __post_init__(self) -> None:
        for name in ("run_id", "idempotency_key", "target"):
            value: object = getattr(self, name)
            if not isinstance(value, str) or not value or not _is_storable(value):
                raise InvalidInvocation(f"an effect's {name} is a text without NUL, not {value!a}")
        if type(self.ordinal) is not int or self.ordinal < 0:
            raise InvalidInvocation(f"an effect's ordinal is 0 or more, not {self.ordinal!r}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Say what to do when a schema is made of a function that takes an identity."""
        raise InvalidFunction(
            "a tool gets its OperationIdentity when it is declared by @effect(...), which hides the"
            " parameter from the model; put the decorator right above the function"
        )

    @property
    def operation_key(self) -> str:
        """The key to hand to a target that accepts one: 43 characters of `a-z 0-9 -`."""
        parts = [self.run_id, self.idempotency_key, self.target, self.ordinal]
        # As a JSON list, so that no two identities are spelled alike.
        digest = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
        return f"op-{digest[:_DIGEST_CHARACTERS]}"


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text
