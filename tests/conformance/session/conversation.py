"""Conversations as agents and clients write them, with all that goes wrong on the way."""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Wire:
    """Writes a channel: what is published, and what a subscriber from the start is given."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._streams: dict[str, dict[str, Any]] = {}
        self._clock = 0

    def publish(
        self,
        name: str,
        transport: dict[str, str | None],
        codec: dict[str, str] | None = None,
        data: Any = None,
        client: str = "agent",
    ) -> str:
        self._clock += 1
        serial = f"{self._clock:08}-000@test:000"
        ai: dict[str, Any] = {"transport": {k: v for k, v in transport.items() if v is not None}}
        if codec:
            ai["codec"] = codec
        line = {
            "action": "message.create",
            "serial": serial,
            "version": {"serial": serial},
            "name": name,
            "clientId": client,
            "extras": {"ai": ai},
        }
        if data is not None:
            line["data"] = data
        self.lines.append(line)
        self._streams[serial] = line
        return serial

    def append(self, serial: str, data: str, status: str = "streaming") -> None:
        self._clock += 1
        created = self._streams[serial]
        extras = json.loads(json.dumps(created["extras"]))
        extras["ai"]["transport"]["status"] = status
        self.lines.append(
            {
                "action": "message.append",
                "serial": serial,
                "version": {"serial": f"{self._clock:08}-000@test:000"},
                "clientId": created["clientId"],
                "data": data,
                "extras": extras,
            }
        )


class Run:
    """A run of an agent on an input; `trigger` has what the input's headers say."""

    def __init__(self, wire: Wire, run_id: str, trigger: dict[str, str | None]) -> None:
        self.wire, self.run_id, self.trigger = wire, run_id, trigger
        self.invocation = f"{run_id}-inv-1"
        self.messages: list[str] = []
        self._counts = {"invocation": 1, "step": 0, "message": 0}

    def event(self, name: str, **headers: str | None) -> str:
        return self.wire.publish(name, {**self.who(), **headers})

    def start(self) -> None:
        asked = {name: self.trigger.get(name) for name in ("fork-of", "msg-regenerate")}
        self.event("ai-run-start", parent=self.trigger["structural-parent"], **asked)

    def resume(self, client: str = "alice") -> None:
        self._counts["invocation"] += 1
        self.invocation = f"{self.run_id}-inv-{self._counts['invocation']}"
        self.trigger = {**self.trigger, "client": client, "parent": self.messages[-1]}
        self.event("ai-run-resume")

    def end(self, reason: str = "complete", **headers: str) -> None:
        self.event("ai-run-end", **{"run-reason": reason, **headers})

    def step(self, step_id: str | None = None) -> Step:
        if step_id is None:
            step_id = f"{self.invocation}-step-{self._counts['step']}"
            self._counts["step"] += 1
        return Step(self, step_id)

    def message_id(self) -> str:
        self._counts["message"] += 1
        return f"{self.run_id}-m{self._counts['message']}"

    def who(self) -> dict[str, str | None]:
        return {
            "run-id": self.run_id,
            "run-client-id": "alice",
            "invocation-id": self.invocation,
            "input-client-id": self.trigger.get("client", "alice"),
            "input-codec-message-id": self.trigger["id"],
        }


class Step:
    """An attempt of a step, begun when it is made."""

    def __init__(self, run: Run, step_id: str) -> None:
        self.run, self.step_id = run, step_id
        self.message = run.message_id()
        self.serial = run.event(
            "ai-step-start", **{"step-id": step_id, "step-client-id": "alice", **_NOT_OF_STEPS}
        )

    def output(self, kind: str, data: Any = "", stream: str = "", **codec: str) -> str:
        streamed = {"stream-id": stream, "status": "streaming"} if stream else {}
        asked = {name: self.run.trigger.get(name) for name in ("fork-of", "msg-regenerate")}
        headers = {
            "role": "assistant",
            "codec-message-id": self.message,
            "parent": self.run.trigger["parent"],
            **asked,
            "step-id": self.step_id,
            "step-client-id": "alice",
            "step-start-serial": self.serial,
            "stream": "true" if stream else "false",
            **streamed,
        }
        if self.message not in self.run.messages:
            self.run.messages.append(self.message)
        who = self.run.who()
        return self.run.wire.publish("ai-output", {**who, **headers}, {"kind": kind, **codec}, data)

    def text(self, *fragments: str, stream: str = "t1", end: str = "complete") -> None:
        serial = self.output("text", stream=stream, id=stream)
        for fragment in fragments:
            self.run.wire.append(serial, fragment)
        if end:
            self.run.wire.append(serial, "", end)

    def call(self, call_id: str, tool: str, *fragments: str) -> None:
        serial = self.output("tool-input", stream=call_id, toolCallId=call_id, toolName=tool)
        for fragment in fragments:
            self.run.wire.append(serial, fragment)
        self.run.wire.append(serial, "", "complete")

    def end(self, reason: str = "complete") -> None:
        headers = {
            "step-id": self.step_id,
            "step-start-serial": self.serial,
            "step-client-id": "alice",
            "step-reason": reason,
        }
        self.run.event("ai-step-end", **headers, **_NOT_OF_STEPS)


_NOT_OF_STEPS: dict[str, str | None] = {"input-codec-message-id": None}


def say(wire: Wire, message_id: str, *parts: str, **headers: str | None) -> dict[str, str | None]:
    """Send a user message; return it as the trigger of a run."""
    for part in parts:
        transport = {
            "role": "user",
            "codec-message-id": message_id,
            "run-client-id": "alice",
            "event-id": f"event-{message_id}",
            "stream": "false",
            "discrete": "true",
            **headers,
        }
        codec = {"kind": "user-message", "messageId": f"dom-{message_id}", "partType": "text"}
        wire.publish("ai-input", transport, codec, part, "alice")
    return {
        "id": message_id,
        "parent": message_id,
        "structural-parent": message_id,
        "fork-of": headers.get("fork-of"),
    }


def answer(wire: Wire, run: Run, message_id: str, call_id: str, approved: str = "true") -> None:
    """Answer the approval of a call in a run that is suspended."""
    transport = {
        "role": "user",
        "codec-message-id": message_id,
        "run-id": run.run_id,
        "run-client-id": "alice",
        "parent": message_id,
        "event-id": f"event-{call_id}",
        "stream": "false",
    }
    codec = {"kind": "tool-approval-response", "toolCallId": call_id, "approved": approved}
    wire.publish("ai-input", transport, codec, "", "alice")


def regenerate(wire: Wire, target: str, parent: str) -> dict[str, str | None]:
    """Ask for another answer in the place of one; return it as the trigger of a run."""
    carrier = f"again-{len(wire.lines)}"
    transport: dict[str, str | None] = {
        "role": "user",
        "codec-message-id": carrier,
        "run-client-id": "alice",
        "parent": parent,
        "msg-regenerate": target,
        "event-id": f"event-{carrier}",
        "stream": "false",
    }
    wire.publish("ai-input", transport, {"kind": "regenerate"}, "", "alice")
    return {
        "id": carrier,
        "parent": parent,
        "structural-parent": parent,
        "msg-regenerate": target,
    }


def fork_with_result(
    wire: Wire, run: Run, source: str, call_id: str, seed: list[dict[str, Any]]
) -> dict[str, str | None]:
    """Leave a suspended run for a new one, with the result of a client's tool."""
    fork = f"fork-{len(wire.lines)}"
    transport: dict[str, str | None] = {
        "role": "assistant",
        "codec-message-id": fork,
        "run-client-id": "alice",
        "parent": source,
        "supersedes": run.run_id,
        "event-id": f"event-{fork}",
        "stream": "false",
    }
    messages = [{"codecMessageId": fork, "message": message} for message in seed]
    data = {"output": {"found": 3}, "forkSeed": {"messages": messages}}
    wire.publish(
        "ai-input", transport, {"kind": "tool-result", "toolCallId": call_id}, data, "alice"
    )
    return {"id": fork, "parent": fork, "structural-parent": source}


class Conversation:
    """A conversation of chance: turns that succeed, fail, retry, wait and, unless told, branch."""

    def __init__(self, seed: int, turns: int = 4, *, branches: bool = True) -> None:
        self._branches = branches
        self.wire = Wire()
        self._random = Random(seed)
        self._tail: str | None = None
        self._inputs: list[tuple[str, str | None]] = []
        self._runs: list[tuple[Run, str]] = []
        for number in range(turns):
            self._turn(number)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return self.wire.lines

    def _turn(self, number: int) -> None:
        kind = self._random.choice(["say", "say", "say", "edit", "regenerate"])
        if not self._branches:
            kind = "say"
        if kind == "edit" and self._inputs:
            source, parent = self._random.choice(self._inputs)
            trigger = self._say(number, parent, source)
        elif kind == "regenerate" and self._runs:
            run, source = self._random.choice(self._runs)
            index = self._random.randrange(len(run.messages))
            before = run.messages[index - 1] if index else source
            trigger = regenerate(self.wire, run.messages[index], before)
        else:
            trigger = self._say(number, self._tail, None)
        run = Run(self.wire, f"run-{number}", trigger)
        run.start()
        self._answer(run)
        if run.messages:
            self._tail = run.messages[-1]
            self._runs.append((run, str(trigger["structural-parent"])))

    def _say(self, number: int, parent: str | None, source: str | None) -> dict[str, str | None]:
        message_id = f"u{number}"
        self._inputs.append((message_id, parent))
        parts = ["one", "two", "three"][: self._random.randint(1, 3)]
        return say(self.wire, message_id, *parts, **{"parent": parent, "fork-of": source})

    def _answer(self, run: Run) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._step(run)
        ending = self._random.choice(["complete", "complete", "cancelled", "error", "none"])
        if ending == "error":
            run.end("error", **{"error-code": "40160", "error-message": "refused"})
        elif ending != "none":
            run.end(ending)

    def _step(self, run: Run) -> None:
        chance = self._random
        step = run.step()
        dead: list[Step] = []
        while chance.random() < 0.35:
            self._begin(step)
            step.text("dead", "er", end="")
            dead.append(step)
            step = run.step(step.step_id)
        self._begin(step)
        if dead and chance.random() < 0.5:
            dead[-1].text("zombie", stream="late")
        match chance.choice(["text", "tool", "approval", "steer", "both"]):
            case "tool":
                step.call("call-" + step.serial, "look", '{"a":', "1}")
                step.output(
                    "tool-output-available", {"output": [1]}, toolCallId="call-" + step.serial
                )
            case "approval":
                self._approval(run, step)
                return
            case "steer":
                steer = f"steer-{step.serial}"
                say(self.wire, steer, "mind this", **{"run-id": run.run_id})
                step.text("as ", "said")
            case "both":
                step.text("thinking", stream="r1")
                step.text("and saying", stream="t2", end=chance.choice(["complete", "cancelled"]))
            case _:
                step.text("Hello", " there", end=chance.choice(["complete", ""]))
        step.output("finish-step")
        step.output("finish", finishReason="stop")
        step.end(chance.choice(["complete", "failed"]))

    def _begin(self, step: Step) -> None:
        if self._random.random() < 0.2:
            return
        step.output("start", messageId=f"dom-{step.message}")
        step.output("start-step")

    def _approval(self, run: Run, step: Step) -> None:
        call = f"call-{step.serial}"
        step.call(call, "remove", '{"path":', '"/"}')
        step.output("tool-approval-request", toolCallId=call, approvalId=f"ask-{call}")
        step.output("finish-step")
        step.output("finish", finishReason="tool-calls")
        step.end()
        run.event("ai-run-suspend")
        if self._branches and self._random.random() < 0.3:
            self._leave(run, step, call)
        elif self._random.random() < 0.8:
            answer(self.wire, run, step.message, call, self._random.choice(["true", "false"]))
            run.resume(self._random.choice(["alice", "bob"]))
            more = run.step()
            more.output("tool-output-available", {"output": True}, toolCallId=call)
            more.end()

    def _leave(self, run: Run, step: Step, call: str) -> None:
        """Go on in another run, with a copy of what the first one had."""
        source = run.trigger["structural-parent"]
        part = {"type": "tool-remove", "toolCallId": call, "state": "input-available"}
        seed = [{"id": step.message, "role": "assistant", "parts": [part]}]
        trigger = fork_with_result(self.wire, run, str(source), call, seed)
        if self._random.random() < 0.8:
            other = Run(self.wire, f"{run.run_id}-after-{call}", trigger)
            other.start()
            again = other.step()
            again.text("went on")
            again.end()
