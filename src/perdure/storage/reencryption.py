from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.storage import approval_rows, message_rows, session_rows
from perdure.storage.checkpoint_rows import state_of
from perdure.storage.documents import BLOB_NAME_BYTES
from perdure.storage.pieces import IN_BLOB
from perdure.storage.places import (
    delay_of,
    digest_of,
    given_of,
    input_of,
    output_of,
    payload_of,
    place_of,
    problem_of,
    run_named,
)
from perdure.storage.receipt_rows import VANISHED, answer_of, arguments_of, doubt_of, reason_of
from perdure.storage.rows import Rows, unsigned

BATCH_ROWS: Final = 50
"""The most rows that one transaction encrypts anew."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""About the most bytes that one transaction encrypts anew."""

PAUSE_SECONDS: Final = 0.005
"""How long another process has between two transactions to get the write lock."""

FIRST: Final[Mapping[str, Any]] = {"timers": "", "decisions": ""}
"""What comes before all rows of a class; 0 for those that are not here."""

_NAME_BYTES: Final = 32
_STANDING: Final[Mapping[str, tuple[int, ...]]] = {
    "runs": (5, 10),
    "records": (11, 16),
    "pieces": (2,),
}
"""Where in a row there is how a value is packed that may stand in a blob; the value follows."""


class Resealer:
    """Encrypts the values of rows anew, with the current key; a row comes with all that it takes.

    The first column of each row says where to go on after it.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._vault = rows.vault
        self._moved: Mapping[bytes, bytes] = {}
        self._of: Mapping[str, Callable[[Sequence[Any]], dict[str, Any]]] = {
            "runs": self._run,
            "records": self._record,
            "timers": self._timer,
            "receipts": self._receipt,
            "decisions": self._decision,
            "pieces": self._piece,
            "checkpoints": self._checkpoint,
            "messages": self._message,
            "approvals": self._approval,
            "session_messages": self._session_message,
            "session_appends": self._session_append,
        }

    @property
    def heads(self) -> dict[str, Any]:
        """How what needs no encrypting begins, as the parameters of statements.

        Raises `KeyUnavailable` when there is no key.
        """
        keys = self._vault.keys
        if keys.current is None:
            raise KeyUnavailable("there is no key to encrypt with: pass encryption=Keyring(...)")
        return {"head": keys.head, "head_text": keys.head_text}

    def in_the_open(self, name: str, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        """Return the names of blobs that rows need, and that were put before there was a key."""
        pairs = [row[at : at + 2] for row in rows for at in _STANDING.get(name, ())]
        return [
            bytes(stored)
            for packing, stored in pairs
            if stored is not None and packing & IN_BLOB and len(stored) == BLOB_NAME_BYTES
        ]

    def reseal(self, name: str, row: Sequence[Any], moved: Mapping[bytes, bytes]) -> dict[str, Any]:
        """Return the parameters of the statement that writes a row anew.

        `moved` are the references to what was put again of the blobs `in_the_open`. Raises
        `StorageCorrupt` or `KeyUnavailable` for what cannot be read.
        """
        self._moved = moved
        return {"number": row[0], **self._of[name](row[1:])}

    def renamed(self, piece: dict[str, Any]) -> dict[str, Any]:
        """Return a piece under a name that nothing else has, for one whose own is taken.

        It was stored again under that one meanwhile, and whoever looks for it finds it there.
        """
        name = os.urandom(_NAME_BYTES)
        data = self._rows.seal_piece(name, piece["sha256"], piece["packing"], piece["part"])
        return {**piece, "digest": name, "data": data}

    def _run(self, row: Sequence[Any]) -> dict[str, Any]:
        run_id, function, version, digest, *documents, problem, erased_at = row
        given, came_to = documents[:5], documents[5:]
        if problem is not None:
            problem = self._value(problem, problem_of(run_id))
        whole = erased_at is None
        return {
            "input_sha256": self._value(digest, given_of(run_id, function, version)),
            "input": self._rest(input_of(run_named(run_id)), *given) if whole else given[1],
            "output": self._rest(output_of(run_id), *came_to),
            "problem": problem,
        }

    def _record(self, row: Sequence[Any]) -> dict[str, Any]:
        run_id, step_id, sequence, digest, kind, handler_id, status, attempt, at, *rest = row
        nested, *documents = rest
        place = place_of(run_id, step_id, unsigned(sequence))
        facts = (kind, handler_id, status, attempt, at, nested != 0)
        return {
            "input_sha256": self._value(digest, digest_of(place, *facts)),
            "input_tail": self._rest(input_of(place), *documents[:5]),
            "payload": self._rest(payload_of(place), *documents[5:]),
        }

    def _timer(self, row: Sequence[Any]) -> dict[str, Any]:
        run_number, run_id, step_id, sequence, wake_at, awaits, digest, document = row
        place = place_of(run_id, step_id, unsigned(sequence))
        return {
            "run_number": run_number,
            "step_id": step_id,
            "sequence": sequence,
            "input_sha256": self._value(digest, digest_of(place, "delay")),
            "input": self._value(document, delay_of(place, wake_at, awaits)),
        }

    def _receipt(self, row: Sequence[Any]) -> dict[str, Any]:
        key, digest, payload, problem, why = row
        if payload is not None:
            payload = self._value(payload, answer_of(key))
        if problem not in {None, VANISHED}:
            problem = self._text(problem, doubt_of(key))
        if why is not None:
            why = self._text(why, reason_of(key))
        return {
            "arguments_sha256": self._value(digest, arguments_of(key)),
            "payload": payload,
            "problem": problem,
            "why": why,
        }

    def _decision(self, row: Sequence[Any]) -> dict[str, Any]:
        key, version, why = row
        why = self._text(why, reason_of(key, version))
        return {"operation_key": key, "version": version, "why": why}

    def _piece(self, row: Sequence[Any]) -> dict[str, Any]:
        name, packing, stored = row
        digest, part = self._rows.unseal_piece(name, packing, stored)
        part = self._reference(packing, part, f"the piece {bytes(name).hex()}")
        new = self._rows.name(digest)
        data = self._rows.seal_piece(new, digest, packing, part)
        piece = {"old": bytes(name), "digest": new, "data": data}
        return {**piece, "sha256": digest, "packing": packing, "part": part}

    def _checkpoint(self, row: Sequence[Any]) -> dict[str, Any]:
        *named, state = row
        return {"state": self._value(state, state_of(*named))}

    def _message(self, row: Sequence[Any]) -> dict[str, Any]:
        *named, payload = row
        return {"payload": self._value(payload, message_rows.payload_of(*named))}

    def _approval(self, row: Sequence[Any]) -> dict[str, Any]:
        run_id, item_id, kind, name, by, arguments, answer = row
        if answer is not None:
            answer = self._value(answer, approval_rows.reply_of(run_id, item_id, by))
        place = approval_rows.arguments_of(run_id, item_id, kind, name)
        return {"arguments": self._value(arguments, place), "answer": answer}

    def _session_message(self, row: Sequence[Any]) -> dict[str, Any]:
        *named, document = row
        return {"document": self._value(document, session_rows.message_place(*named))}

    def _session_append(self, row: Sequence[Any]) -> dict[str, Any]:
        *named, document = row
        return {"document": self._value(document, session_rows.append_place(*named))}

    def _reference(self, packing: int, kept: bytes, place: str) -> bytes:
        """Return what is kept of a value, with the key of its blob where that had none."""
        if not packing & IN_BLOB or len(kept) > BLOB_NAME_BYTES:
            return kept
        if kept not in self._moved:
            raise StorageCorrupt(
                f"{place} stands in a blob that was not encrypted and has just come: encrypt again"
            )
        return self._moved[kept]

    def _value(self, stored: bytes, place: str) -> bytes:
        return self._vault.seal(self._vault.unseal(bytes(stored), place), place)

    def _text(self, stored: str, place: str) -> str:
        return self._vault.seal_text(self._vault.unseal_text(stored, place), place)

    def _rest(
        self,
        place: str,
        packing: int,
        stored: bytes | None,
        piece: bytes | None,
        piece_packing: int | None,
        piece_data: bytes | None,
    ) -> bytes | None:
        if stored is None:
            return None
        digest = b""
        if piece is not None and piece_data is not None:
            digest, _ = self._rows.unseal_piece(piece, piece_packing or 0, piece_data)
        rest = self._rows.unseal_rest(place, packing, digest, stored)
        rest = self._reference(packing, rest, place)
        return self._rows.seal_rest(place, packing, digest, rest)


def size_of(row: Sequence[Any]) -> int:
    """Return about how many bytes a row has."""
    return sum(len(value) for value in row if isinstance(value, bytes | str))
