from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.approvals import (
    Answer,
    Approval,
    ApprovalKind,
    NewAnswer,
    NewApproval,
    decode_answer,
    encode_answer,
)
from perdure.errors import (
    AlreadyResolved,
    ApprovalChanged,
    ApprovalClosed,
    StorageCorrupt,
    UnknownApproval,
)
from perdure.storage.rows import signed, unsigned
from perdure.storage.vault import Vault
from perdure.wording import printable


def approval_row(vault: Vault, run_id: str, approval: NewApproval) -> dict[str, Any]:
    """Return the row of what a run asks for; its arguments pass the vault."""
    kind, item_id = approval.kind.value, approval.item_id
    place = arguments_of(run_id, item_id, kind, approval.name)
    return {
        "item_id": item_id,
        "ask_kind": kind,
        "name": approval.name,
        "arguments": vault.seal(approval.arguments_json, place),
        "asked_at": approval.asked_at,
    }


def answer_row(vault: Vault, run_id: str, item_id: str, answer: NewAnswer) -> dict[str, Any]:
    """Return an answer as the parameters of the statement that writes it."""
    document = encode_answer(answer.answer)
    by = printable(answer.by)
    return {
        "run_id": run_id,
        "item_id": item_id,
        "decision": type(answer.answer).__struct_config__.tag,
        "answer": vault.seal(document, reply_of(run_id, item_id, by)),
        "answered_by": by,
        "answered_at": answer.at,
    }


def archived_row(vault: Vault, run_id: str, approval: Approval) -> dict[str, Any]:
    """Return the row of what a run asked for in another store, with its answer."""
    item_id, answer, (step_id, sequence) = approval.item_id, approval.answer, approval.asked_by
    new = NewApproval(
        item_id, approval.kind, approval.name, approval.arguments_json, approval.asked_at
    )
    row = {"decision": None, "answer": None, "answered_by": None, "answered_at": None}
    if answer is not None:
        said = NewAnswer(answer, approval.answered_by or "", approval.answered_at or 0.0)
        row = answer_row(vault, run_id, item_id, said)
    return {
        **row,
        **approval_row(vault, run_id, new),
        "run_id": run_id,
        "step_id": step_id,
        "sequence": signed(sequence),
    }


def approval_of(vault: Vault, row: Sequence[Any]) -> Approval:
    """Return what a run asked for, and what was answered.

    Raises `StorageCorrupt` where something is not what was written there.
    """
    run_id, item_id, kind, name, arguments, asked_at, expires_at, waits, *rest = row
    stored, by, at, step_id, sequence = rest
    place = arguments_of(run_id, item_id, kind, name)
    answer = None
    if stored is not None:
        said = reply_of(run_id, item_id, by)
        answer = _answer(vault.unseal(bytes(stored), said), said)
    return Approval(
        run_id,
        item_id,
        ApprovalKind(kind),
        name,
        vault.unseal(bytes(arguments), place),
        asked_at,
        expires_at,
        open=bool(waits) and answer is None,
        answer=answer,
        answered_by=by,
        answered_at=at,
        asked_by=(step_id, unsigned(sequence)),
    )


def _answer(document: bytes, place: str) -> Answer:
    try:
        return decode_answer(document)
    except msgspec.DecodeError as error:
        raise StorageCorrupt(
            f"{place.partition('|')[0]} is damaged in the database; restore it from a backup"
        ) from error


def check_answerable(
    run_id: str, item_id: str, found: Approval | None, expect_digest: str | None
) -> None:
    """Check that an answer may be written; raises what `answer_approval` does."""
    if found is None:
        raise UnknownApproval(f"run {run_id} asked for nothing under the id {item_id!r}")
    if found.answer is not None:
        raise AlreadyResolved(
            run_id, item_id, winner=found.answer, by=found.answered_by, at=found.answered_at
        )
    if not found.open:
        raise ApprovalClosed(
            f"run {run_id} does not wait for an answer to {item_id!r} any more: it has ended, or"
            " its time for an answer is over"
        )
    if expect_digest is not None and expect_digest != found.digest:
        raise ApprovalChanged(
            f"what run {run_id} asks for under {item_id!r} is not what the answer is about: its"
            f" arguments have the digest {found.digest}, not {expect_digest}; look at it again"
        )


def arguments_of(run_id: str, item_id: str, kind: str, name: str) -> str:
    """Return the place of the arguments of what a run asked for, with what else its row says."""
    return f"the arguments of approval {run_id}/{item_id}|{kind}|{name}"


def reply_of(run_id: str, item_id: str, by: str | None) -> str:
    """Return the place of an answer, with who gave it."""
    return f"the answer to approval {run_id}/{item_id}|{by}"
