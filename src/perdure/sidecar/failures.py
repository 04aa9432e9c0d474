from __future__ import annotations


class HandlerFailed(Exception):
    """One attempt of a handler came to no record; a permanent one is not tried again.

    `name` is an identifier, and the `error_name` of the record that it comes to at last.
    """

    def __init__(self, name: str, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.permanent = permanent
