"""Values <-> JSON bytes, with every type that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure.canonical import decode, exact_bytes
from perdure.codec.mark import MARK

if TYPE_CHECKING:
    from perdure.codec.known import KnownTypes

Named: TypeAlias = "type[Any] | tuple[str, type[Any]]"
"""A class whose instances are stored, or such a class and the name that they are stored under."""

_MARK: Final = f'"{MARK}"'.encode()
_OPENERS: Final = b"{["
_CREDENTIALS: Final = (b'authorization":', b'cookie":', b'-key":')


class Codec:
    """Writes the values of user code as JSON, and gives back exactly what was written.

    What JSON carries is written as plain JSON. Anything else becomes an object whose member
    `$perdure` says what it is; a dict of the user's that has this key is written as one too.
    Nothing is ever imported by name: classes come back only if they are among `types`, or in the
    annotations of a function that the codec was told of.
    """

    def __init__(self, types: Sequence[Named] = ()) -> None:
        self._functions: list[Callable[..., Any]] = []
        self._lazy_known: KnownTypes | None = None
        if types:
            self._known.register(types)

    def learn(self, function: Callable[..., Any]) -> None:
        """Take the classes in the annotations of a function as known, from when one is needed."""
        self._functions.append(function)

    def encode(
        self, value: object, *, what: str = "result", function: Callable[..., Any] | None = None
    ) -> bytes:
        """Return a value as JSON bytes, the same bytes for every equal value.

        `function` is one whose annotations may name the classes. Raises `InvalidPayload` with the
        path, which begins with `what`, for what would not come back equal and for secrets.
        """
        data = exact_bytes(value)
        if data is not None and not _suspect(data):
            return data
        from perdure.codec.lossless import write  # most programs have plain values only

        return write(value, what, self._known.within(function))

    def decode(
        self,
        data: bytes,
        *,
        what: str = "payload",
        function: Callable[..., Any] | None = None,
    ) -> Any:
        """Return the value of bytes that `encode` wrote, or of any plain JSON document.

        Raises `InvalidPayload` with the path, also for classes that nobody registered here.
        """
        value = decode(data, what=what)
        if _MARK not in data:
            return value
        from perdure.codec.lossless import read

        return read(value, what, self._known.within(function))

    @property
    def _known(self) -> KnownTypes:
        if self._lazy_known is None:
            from perdure.codec.known import KnownTypes

            self._lazy_known = KnownTypes(self._functions)
        return self._lazy_known


def _suspect(data: bytes) -> bool:
    """Tell whether plain JSON may hold a mark of the codec, or a credential."""
    if data[0] not in _OPENERS:
        return False
    if _MARK in data:
        return True
    lower = data.lower()
    # A loop over three would take longer than the search itself.
    return _CREDENTIALS[0] in lower or _CREDENTIALS[1] in lower or _CREDENTIALS[2] in lower
