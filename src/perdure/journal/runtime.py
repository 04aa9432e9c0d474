from __future__ import annotations

from typing import Protocol

from perdure.journal.invocation import Invocation
from perdure.journal.record import Record


class Runtime(Protocol):
    """The port through which operations are executed: on this machine or somewhere else.

    A runtime keeps one record for each stable key. It

    - answers a key it has a record for with that record, and calls nothing;
    - refuses a key whose record has another kind, handler or input, byte for byte;
    - chooses what to call by kind and handler id, and nothing else;
    - persists a record before it returns it;
    - returns failures of the called function as records, and raises only when it cannot say
      what came back.
    """

    async def execute(self, invocation: Invocation) -> Record:
        """Return the record of a valid invocation, executing it if there is none yet.

        Durable when it returns: the record, wherever the runtime keeps its journal.
        If it raises: the outcome is unknown; the same invocation may be executed again.
        """
        ...
