from __future__ import annotations

from typing import Any, Final

_IMPORTED_FROM: Final = "perdure.errors"


class PerdureError(Exception):
    """The root of every error that perdure raises; each can be pickled."""

    __module__ = _IMPORTED_FROM

    def __init_subclass__(cls) -> None:
        """Name each error by where people import it from, as journals have it."""
        if cls.__module__.startswith(f"{_IMPORTED_FROM}."):
            cls.__module__ = _IMPORTED_FROM

    def __reduce__(self) -> Any:
        """Rebuild without the constructor, which takes other arguments than the message."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class JournalError(PerdureError):
    """The journal or the operation contract was violated."""


class CommandError(PerdureError):
    """What was typed on the command line cannot be done as it stands."""


def _rebuilt(
    kind: type[PerdureError], args: tuple[Any, ...], state: dict[str, Any]
) -> PerdureError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
