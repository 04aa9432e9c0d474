from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from perdure.background import Caller
from perdure.effects.answer import Answer, Lookup
from perdure.effects.guard import Applied
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy
from perdure.errors import InvalidFunction
from perdure.functions import check_performable
from perdure.receipts import ANSWER, ReceiptStore, effect_of

SyncLookup: TypeAlias = Callable[[OperationIdentity], Answer]
"""A lookup that is an ordinary function."""


def guard_sync(
    store: ReceiptStore | None,
    identity: OperationIdentity,
    send: Callable[[OperationIdentity], Any],
    *,
    policy: EffectPolicy | None = None,
    arguments: Any = None,
    lookup: SyncLookup | None = None,
    wait_seconds: float = 0.0,
) -> Any:
    """Do as `guard` does, in a program without an event loop.

    `send` and `lookup` are ordinary functions and run in the calling thread, so what belongs to
    it, such as a database session, can be used. Any number of threads may call at once; `with
    store:` or `store.close_sync()` ends the loop that serves them.

    A function cannot be stopped. After the policy's `timeout_seconds` its receipt is ambiguous for
    everybody else, while this call returns or raises only when the function has ended; what it
    returns so late still counts. Give its client a shorter timeout of its own.

    Durable when it returns, and if it raises: as `guard`. An interrupt, such as Ctrl-C, leaves the
    effect ambiguous and is raised when that is written. `EngineClosed` inside a running event
    loop, on receipts that one has opened, or when they are closed meanwhile; `InvalidFunction`
    for an async function.
    """
    check_performable(send)
    if store is None:
        return send(identity)
    for function in (send, lookup):
        if inspect.iscoroutinefunction(function):
            raise InvalidFunction(
                f"guard_sync calls ordinary functions, and {function!r} is async: await guard"
            )

    codec = store.codec
    stood_for = codec.encode(arguments, what="arguments", function=send)

    async def main(caller: Caller[Applied]) -> Applied:
        async def sent(identity: OperationIdentity) -> bytes:
            return await caller.ask(
                lambda: codec.encode(send(identity), what=ANSWER, function=send)
            )

        asked = None if lookup is None else _by(caller, lookup)
        effect = effect_of(codec, identity, sent, policy, stood_for, asked, overdue=caller.overdue)
        return await store.apply(effect, wait_seconds)

    payload = store.background().call(main).payload
    return codec.decode(payload, what=ANSWER, function=send)


def _by(caller: Caller[Applied], lookup: SyncLookup) -> Lookup:
    async def looked(identity: OperationIdentity) -> Answer:
        return await caller.ask_out(lambda: lookup(identity))

    return looked
