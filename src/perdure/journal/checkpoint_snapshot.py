from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from perdure.canonical import check_json
from perdure.errors import (
    CheckpointTooLarge,
    InvalidCheckpoint,
    InvalidPayload,
    UnsupportedCheckpointVersion,
)
from perdure.journal.checkpoint import NUMBER_LIMIT, Checkpoint, CheckpointKind

T = TypeVar("T")

VERSION: Final = 2
"""The version of the snapshot that this release writes; it reads version 1 as well."""

MOST_CHECKPOINTS: Final = 65_536
"""The most checkpoints that one snapshot holds."""

SNAPSHOT_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""Under how many bytes any snapshot stays."""

Checkpoints: TypeAlias = Mapping[tuple[str, str], Checkpoint]
"""Checkpoints by their keys, in the order in which they were created."""

_Revision = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_LIMIT)]
_Cursor = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_LIMIT)]


class _Root(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=255)]
    checkpoints: msgspec.Raw


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    run_id: str
    checkpoint_id: str
    kind: CheckpointKind
    revision: _Revision
    cursor: _Cursor
    state_json: str


class _EntryOfVersion1(msgspec.Struct, forbid_unknown_fields=True):
    run_id: str
    checkpoint_id: str
    kind: CheckpointKind
    revision: _Revision
    event_cursor: _Cursor
    payload_json: str


class _Snapshot(msgspec.Struct):
    version: int
    checkpoints: list[_Entry]


_encode: Final = msgspec.json.Encoder().encode
_roots: Final = msgspec.json.Decoder(_Root)
_entries: Final = msgspec.json.Decoder(list[_Entry])
_entries_of_version_1: Final = msgspec.json.Decoder(list[_EntryOfVersion1])


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the member of a snapshot that it is."""
    return _encode(_entry_of(checkpoint))


def encode_snapshot(
    checkpoints: Iterable[Checkpoint], *, what: str, limit_bytes: int = SNAPSHOT_LIMIT_BYTES
) -> bytes:
    """Return valid checkpoints as one JSON document.

    Raises `CheckpointTooLarge` for what `parse_snapshot` would refuse under the same limit.
    """
    entries = [_entry_of(checkpoint) for checkpoint in checkpoints]
    if len(entries) > MOST_CHECKPOINTS:
        raise CheckpointTooLarge(
            f"{what} would hold {len(entries)} checkpoints, and {MOST_CHECKPOINTS} are the most:"
            " remove those of runs that are over"
        )
    data = _encode(_Snapshot(VERSION, entries))
    _check_size(data, what, limit_bytes)
    return data


def parse_snapshot(
    data: bytes, *, what: str, limit_bytes: int = SNAPSHOT_LIMIT_BYTES
) -> Checkpoints:
    """Return the checkpoints of a document, each of them valid; one of version 1 is converted.

    Raises `CheckpointTooLarge` for a document of `limit_bytes` or more,
    `UnsupportedCheckpointVersion`, or `InvalidCheckpoint` for one that is malformed or holds what
    no store would have written.
    """
    _check_size(data, what, limit_bytes)
    root = _read(data, _roots, what)
    if root.version not in {1, VERSION}:
        raise UnsupportedCheckpointVersion(
            f"{what} has version {root.version} and this release reads 1 and {VERSION}: upgrade"
            " perdure where it is read"
        )
    entries = _entries_of(root, what)
    # Last: one of the right shape is read fast, and one that is nested without end is refused so.
    try:
        check_json(data, what=what)
    except InvalidPayload as error:
        raise InvalidCheckpoint(str(error)) from error
    if len(entries) > MOST_CHECKPOINTS:
        raise InvalidCheckpoint(f"{what} holds more than {MOST_CHECKPOINTS} checkpoints")
    found: dict[tuple[str, str], Checkpoint] = {}
    for entry in entries:
        checkpoint = Checkpoint(
            entry.run_id,
            entry.checkpoint_id,
            entry.kind,
            entry.revision,
            entry.cursor,
            entry.state_json.encode(),
        )
        checkpoint.validate()
        if checkpoint.key in found:
            raise InvalidCheckpoint(f"{what} holds the checkpoint {'/'.join(checkpoint.key)} twice")
        found[checkpoint.key] = checkpoint
    return found


def _entries_of(root: _Root, what: str) -> list[_Entry]:
    if root.version == VERSION:
        return _read(root.checkpoints, _entries, what)
    return [
        _Entry(
            entry.run_id,
            entry.checkpoint_id,
            entry.kind,
            entry.revision,
            entry.event_cursor,
            entry.payload_json,
        )
        for entry in _read(root.checkpoints, _entries_of_version_1, what)
    ]


def _read(data: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], what: str) -> T:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{what} does not have the shape of one: {error}") from error


def _entry_of(checkpoint: Checkpoint) -> _Entry:
    return _Entry(
        checkpoint.run_id,
        checkpoint.checkpoint_id,
        checkpoint.kind,
        checkpoint.revision,
        checkpoint.cursor,
        checkpoint.state_json.decode(),
    )


def _check_size(data: bytes, what: str, limit_bytes: int) -> None:
    if len(data) >= limit_bytes:
        raise CheckpointTooLarge(
            f"{what} has {limit_bytes} bytes or more, and stays under that: remove the checkpoints"
            " of runs that are over, or raise the limit wherever it is read"
        )
