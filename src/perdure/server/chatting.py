from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from perdure.server.asked import Asked, asked_by
from perdure.server.chat_request import Continue, Regenerate, Say, Wanted
from perdure.server.conversation import Conversation
from perdure.server.gate import Entry, check_name, own_event
from perdure.server.problems import Refused
from perdure.server.run_chunks import RunChunks
from perdure.server.service import Service
from perdure.session.client import ClientSession
from perdure.session.codec import Approval, FoldedMessage
from perdure.session.headers import EVENT_ID
from perdure.session.input_node import InputNode
from perdure.session.lifecycle import ENDS
from perdure.session.run_node import RunNode
from perdure.session.sent import Sent


class Chatting:
    """Does what a page asks for in a chat, where a message of an agent is a run, and has its id."""

    def __init__(
        self, service: Service, entry: Entry, conversation: Conversation, chunks: RunChunks
    ) -> None:
        self._service = service
        self._entry = entry
        self._conversation = conversation
        self._chunks = chunks

    async def send(self, asked: Wanted) -> Callable[[], str]:
        """Write what is asked for and let an agent answer it.

        Returns what says the id of the run that answers, once it is seen, or ''. Durable when it
        returns: what was written, and that it will be answered.
        """
        async with self._service.client(self._entry) as client:
            match asked:
                case Say():
                    sent = await self._say(client, asked)
                case Regenerate():
                    sent = await self._regenerate(client, asked)
                case Continue():
                    return await self._go_on(client, asked)
                case _:
                    assert_never(asked)
        await self._service.start(self._entry, sent.event_id)
        return self._run_of(sent)

    def _run_of(self, sent: Sent) -> Callable[[], str]:
        key = sent.input_codec_message_id
        return lambda: self._conversation.tree.led_to(key)

    async def _say(self, client: ClientSession, asked: Say) -> Sent:
        if asked.edits is not None:
            said = await self._said(asked.edits)
            return await client.edit(said.codec_message_id, asked.message)
        key = asked.message["id"]
        check_name("the id of a message", key)
        # A page that does not know whether this arrived sends it again under the same id.
        return await client.send(asked.message, event_id=own_event(self._entry, f"chat/{key}"))

    async def _regenerate(self, client: ClientSession, asked: Regenerate) -> Sent:
        run = await self._answer(asked.message_id)
        written = [m for m in run.messages() if m.message["role"] == "assistant"] if run else []
        if written:
            return await client.regenerate(written[0].codec_message_id)
        question = self._conversation.tree.input(run.parent or "") if run else None
        said = question.messages() if question is not None else ()
        if not said:
            raise Refused(404, "UnknownMessage", "there is no answer to be given anew")
        return await client.edit(said[0].codec_message_id, said[0].message)

    async def _answer(self, key: str | None) -> RunNode | None:
        """Return the run that a page means: by its message, by what it answers, or the last."""
        conversation = self._conversation
        if key is None:
            runs = [node for node in conversation.branch().nodes if isinstance(node, RunNode)]
            return await conversation.run(runs[-1].key) if runs else None
        said = self._find(key)
        run_id = conversation.tree.led_to(said.codec_message_id) if said else ""
        return await (conversation.run(run_id) if run_id else conversation.answer(key))

    async def _said(self, key: str) -> FoldedMessage:
        await self._conversation.read_back(lambda: self._find(key) is not None)
        found = self._find(key)
        if found is None:
            raise Refused(404, "UnknownMessage", "no message with this id is shown in the session")
        return found

    def _find(self, key: str) -> FoldedMessage | None:
        """Return what a person said, by the id that pages have for it."""
        for node in reversed(self._conversation.branch().nodes):
            for folded in node.messages() if isinstance(node, InputNode) else ():
                if key in (folded.message.get("id"), folded.codec_message_id):
                    return folded
        return None

    async def _go_on(self, client: ClientSession, asked: Continue) -> Callable[[], str]:
        """Write the answers that are new, and let the run go on, or one in its place."""
        run = await self._conversation.answer(asked.message_id)
        if run is None:
            raise Refused(404, "UnknownMessage", "no message with this id is shown in the session")
        calls = {call.tool_call_id: call for call in asked_by(run)}
        about = {
            answer.tool_call_id for answer in (*asked.approvals, *asked.results)
        } & calls.keys()
        answered = [sent for sent in run.inputs if sent.codec.get("toolCallId", "") in about]
        self._chunks.go_on()
        events = [
            await self._approve(client, calls[answer.tool_call_id], answer)
            for answer in asked.approvals
            if answer.tool_call_id in calls and calls[answer.tool_call_id].is_open
        ]
        results = [result for result in asked.results if _is_wanted(calls.get(result.tool_call_id))]
        if results:
            sent = await client.answer(results, run_id=run.key)
            await self._service.start(self._entry, sent.event_id)
            return self._run_of(sent)
        if not events and answered and run.info.lifecycle.status not in ENDS:
            # It was written before, by a process that may have come no further.
            events = [answered[-1].header(EVENT_ID)]
        if not events:
            raise Refused(409, "AlreadyResolved", "the run has nothing open that this answers")
        for event in events:
            await self._service.start(self._entry, event)
        # What the run wrote once it had been answered is not in the message of the page.
        self._chunks.skip(run, answered[0].serial if answered else None)
        return lambda: run.key

    async def _approve(self, client: ClientSession, call: Asked, said: Approval) -> str:
        sent = await client.approve(
            call.tool_call_id,
            said.approved,
            said.reason,
            run_id=call.run.key,
            event_id=call.event_id,
        )
        return sent.event_id


def _is_wanted(call: Asked | None) -> bool:
    """Whether the page's own tool is to give the result of a call."""
    return call is not None and call.state == "input-available" and not call.is_over
