from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from perdure.approvals import Answer, Approval, ApprovalKind, Approve, Deny, Result
from perdure.cli.naming import request_of
from perdure.cli.sheet import Column, Sheet, plain, plain_lines
from perdure.cli.words import SHA256_SHOWN, instant, moment, shortened
from perdure.codec.readable import readable

_ARGUMENTS_SHOWN: Final = 120
_WAYS: Final = {
    ApprovalKind.APPROVAL: (
        ("approve", "", "", "it may be done; with --arguments JSON, with these instead"),
        ("deny", "", " --why TEXT", "it may not be done; TEXT tells whoever wanted to why"),
    ),
    ApprovalKind.EXTERNAL: (
        ("answer", " JSON", "", "JSON is what came of it; with --error, what went wrong"),
        ("deny", "", " --why TEXT", "nothing will come of it; TEXT tells whoever waits why"),
    ),
}
"""The commands that answer each kind, with what stands before and behind the options."""


def what_of(approval: Approval) -> str:
    """Return what is asked for, as people call it."""
    return request_of(approval.kind, approval.name)


def digest_of(approval: Approval) -> str:
    """Return the beginning of the digest of the arguments, which the commands take as well."""
    return approval.digest[:SHA256_SHOWN]


def arguments_of(approval: Approval, limit: int = _ARGUMENTS_SHOWN) -> str:
    """Return the arguments as one line of at most so many characters."""
    return shortened(readable(approval.arguments_json).decode("utf-8", "replace"), limit)


def state_of(approval: Approval) -> str:
    """Return whether something waits for an answer, or what was answered."""
    if approval.answer is not None:
        return said(approval.answer)
    return "open" if approval.open else "closed"


def said(answer: Answer) -> str:
    """Return what an answer says, in few words."""
    match answer:
        case Approve(arguments=None):
            return "approved"
        case Approve():
            return "approved with other arguments"
        case Deny():
            return "denied"
        case Result(is_error=True):
            return "answered with an error"
        case Result():
            return "answered"
        case _:
            assert_never(answer)


def commands(approval: Approval, place: str) -> list[str]:
    """Return the command lines that answer something open; JSON and TEXT are to be filled in."""
    return [command for command, _ in _ways(approval, place)]


def told(approval: Approval, place: str) -> list[str]:
    """Return the commands that answer something open, as lines that say what each means."""
    return [f"{command}  # {meaning}" for command, meaning in _ways(approval, place)]


def _ways(approval: Approval, place: str) -> list[tuple[str, str]]:
    item = f"{approval.run_id} {approval.item_id}"
    options = f"{place} --digest {digest_of(approval)}"
    return [
        (f"perdure {name} {item}{before}{options}{behind}", meaning)
        for name, before, behind, meaning in _WAYS[approval.kind]
        if approval.open
    ]


# --- for programs --------------------------------------------------------------------------------


def describe_approval(approval: Approval, place: str) -> dict[str, Any]:
    """Return what a run asked for as a JSON document shows it."""
    return {
        "run_id": approval.run_id,
        "asked_by": "/".join(map(str, approval.asked_by)),
        "item_id": approval.item_id,
        "kind": approval.kind,
        "name": approval.name,
        "arguments": msgspec.Raw(approval.arguments_json),
        "digest": approval.digest,
        "asked_at": instant(approval.asked_at),
        "expires_at": instant(approval.expires_at),
        "open": approval.open,
        "answer": approval.answer,
        "answered_by": approval.answered_by,
        "answered_at": instant(approval.answered_at),
        "commands": commands(approval, place),
    }


# --- for people ----------------------------------------------------------------------------------


def approvals_sheet(
    approvals: Iterable[Approval],
    *,
    title: str = "",
    of_one_run: bool = False,
    answered: bool = False,
) -> Sheet:
    """Return what runs ask for as a table, in the order given.

    `of_one_run` leaves the run out, and `answered` says of each what was answered, and by whom.
    """
    columns: list[Column] = [] if of_one_run else [Column("run", least=8)]
    columns += [Column("item"), Column("what", least=12), Column("arguments", least=20)]
    columns += [Column("state")] if answered else []
    columns += [
        Column("asked (UTC)", dispensable=2),
        Column("expires (UTC)", dispensable=1),
        Column("digest", dispensable=3),
        *([Column("by", dispensable=4)] if answered else []),
    ]

    def cells(approval: Approval) -> Sequence[object]:
        return [
            *([] if of_one_run else [approval.run_id]),
            approval.item_id,
            what_of(approval),
            arguments_of(approval),
            *([state_of(approval)] if answered else []),
            moment(approval.asked_at).removesuffix("Z"),
            moment(approval.expires_at).removesuffix("Z"),
            digest_of(approval),
            *([approval.answered_by] if answered else []),
        ]

    return Sheet(title, columns, map(cells, approvals))


def facts(approval: Approval, place: str) -> str:
    """Return something that a run asked for whole, and how to answer it."""
    by, at = approval.answered_by, moment(approval.answered_at)
    lines = [f"approval {approval.item_id} of run {approval.run_id}"]
    values = {
        "what": what_of(approval),
        "state": state_of(approval) if by is None else f"{state_of(approval)} by {by}, {at}",
        "operation": "/".join(map(str, approval.asked_by)),
        "asked": moment(approval.asked_at),
        "expires": moment(approval.expires_at),
        "digest": f"SHA-256 {approval.digest}",
    }
    lines += [f"  {name:<11}{plain(value)}" for name, value in values.items() if value]
    lines += ["", "arguments", _pretty(approval.arguments_json)]
    if approval.answer is not None:
        lines += ["", "answer", _pretty(msgspec.json.encode(approval.answer))]
    ways = told(approval, place)
    if ways:
        lines += ["", "to answer it, type one of these", *(f"  {way}" for way in ways)]
    return "\n".join(lines)


def _pretty(document: bytes) -> str:
    return plain_lines(msgspec.json.format(readable(document), indent=2).decode())
