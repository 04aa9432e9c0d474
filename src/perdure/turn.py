from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from perdure.canonical import decode, encode
from perdure.context import Context, current
from perdure.errors import InvalidFunction, InvalidPayload, NotInRun
from perdure.functions import handler_id_of
from perdure.journal.invocation import OperationKind
from perdure.journal.record import Success
from perdure.session.codec.ui_texts import as_step
from perdure.showing import Showing

_MESSAGES: Final = "turn.messages"


class Turn:
    """What a run answers: something that was said in a session, under an event id.

    Whatever is streamed through it, or by an agent inside of the run, the people on the session
    see while it is made.
    """

    def __init__(self, context: Context, session: str, event_id: str) -> None:
        self.session = session
        self.event_id = event_id
        self._context = context

    async def messages(self) -> list[dict[str, Any]]:
        """Return the conversation that is to be answered, oldest message first; recorded.

        They are UI messages: `{"id", "role", "parts"}`. What came to no answer is left out, as are
        messages that an edit or a regeneration has replaced, and whatever this run has shown.
        """
        context = self._here

        async def handler() -> Success:
            showing = _shown(context)
            return Success(encode({"messages": await showing.messages()}, what="a conversation"))

        performed = await context.perform(
            OperationKind.TOOL_CALL,
            _MESSAGES,
            context.counter(_MESSAGES),
            "perdure.turn.messages",
            encode({"session": self.session, "event_id": self.event_id}),
            handler,
        )
        return decode(performed.output(_MESSAGES))["messages"]

    async def text(self) -> str:
        """Return what a person said last, the text of it; '' where it is none."""
        said = [one["parts"] for one in await self.messages() if one["role"] == "user"]
        parts: list[dict[str, Any]] = said[-1] if said else []
        return "".join(part["text"] for part in parts if part.get("type") == "text")

    async def stream(self, source: Callable[..., AsyncIterable[Any]], *args: Any) -> Any:
        """Show what an async generator function yields, and return it; recorded as one operation.

        It yields texts, which come back as one, or chunks of a UI message stream, which come back
        in a list. After a crash it is called again, and what it yields then takes the place of
        what was seen. Inside of another operation, nothing is shown of it. `args` are JSON values.

        Raises `InvalidPayload` where it yields something else, and `InvalidFunction`.
        """
        if not callable(source):
            raise InvalidFunction(
                "what is streamed is made by an async generator function, which is given with its"
                f" arguments, as in turn.stream(words, text): not {type(source).__name__}"
            )
        context = self._here
        context.has_streamed = context.has_streamed or not context.nested
        name = handler_id_of(source, None, 1)
        step = f"turn.stream.{getattr(source, '__name__', 'source')}"
        number = context.counter(step)

        async def handler() -> Success:
            made: list[Any] = []
            chunks = _collected(source(*args), made)
            if context.nested or context.showing is None:
                # The one around it may be shown, and waits for this one; or nobody watches a fork.
                async for _ in chunks:
                    pass
            else:
                await _show(chunks)
            texts = all(isinstance(chunk, str) for chunk in made)
            return Success(encode({"value": "".join(made) if texts else made}, what=step))

        document = encode({"arguments": list(args)}, what=f"the arguments of {name}")
        performed = await context.perform(
            OperationKind.MODEL_STREAM, step, number, name, document, handler
        )
        return decode(performed.output(step))["value"]

    async def answer(self, value: Any) -> None:
        """Show what the run returns, if that is a text and nothing was streamed instead."""
        if isinstance(value, str) and value and not self._context.has_streamed:
            await self.stream(returned, value)

    @property
    def started_at(self) -> datetime:
        """When the run began: a time that is the same on every execution."""
        return datetime.fromtimestamp(self._context.started_at, UTC)

    @property
    def _here(self) -> Context:
        """The context of the code that asks: the run's own, a branch's, or an operation's."""
        return current() or self._context


async def returned(text: str) -> AsyncGenerator[str]:
    """Yield a text that is there at once."""
    yield text


async def _show(chunks: AsyncIterable[Any]) -> None:
    """Show chunks as the step of the operation that is under way."""
    inside = current()
    assert inside is not None
    assert inside.performing is not None
    await _shown(inside).step(inside.performing, as_step(chunks))


async def _collected(source: AsyncIterable[Any], made: list[Any]) -> AsyncGenerator[Any]:
    async for chunk in source:
        if not isinstance(chunk, str | dict):
            raise InvalidPayload(
                f"what is streamed to people is texts or chunks, not {type(chunk).__name__}"
            )
        made.append(chunk)
        yield chunk


def _shown(context: Context) -> Showing:
    showing = context.showing
    if showing is None:
        raise NotInRun("nobody watches this run: it was started with `start`, not in a session")
    return showing
