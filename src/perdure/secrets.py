"""Secrets that are passed on without being stored."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.context import current
from perdure.errors import NotInRun


class SecretRef(msgspec.Struct, frozen=True):
    """Stands for a secret that the App's `secrets` resolves; only its name is stored.

    Pass it on as an argument or an input, and resolve it where the secret is used.
    """

    name: str

    def resolve(self) -> str:
        """Return the secret; raises `NotInRun` outside of a run."""
        context = current()
        if context is None:
            raise NotInRun(
                f"the secret {self.name!r} is resolved by the App of a run; outside of one, ask"
                " whoever keeps it"
            )
        return context.secret(self.name)


class Secret:
    """Marks a text as secret: it is passed on within a process, and refused wherever it is stored.

    What shows it shows stars. The secrets of pydantic are refused as well.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value: Final = value

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"
