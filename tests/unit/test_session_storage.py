"""The messages of sessions as they are stored: what the checks of every driver cannot see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.engine.retention import Expiry
from perdure.errors import StorageBusy, StorageCorrupt
from perdure.session import headers
from perdure.session.message import Action, WireMessage
from perdure.session.message_log import MessageLog
from perdure.storage.session_rows import folded
from perdure.storage.session_writes import SessionBatch
from perdure.storage.vault import OpenVault
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage.talking import (
    BEGINNING,
    Reader,
    append,
    changed,
    draft,
    publication,
    said,
    streamed,
    update,
)
from tests.encrypting import keyring, shows
from tests.harness import RUN, run, stored
from tests.storages import look

SECRET = "what nobody else may read"
moves = st.sampled_from(["publish", "append", "append", "update", "end", "step", "read"])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(moves, st.integers(0, 3), st.integers(1, 4)), max_size=25),
    st.integers(1, 5),
)
def test_every_history_is_the_same_from_every_cursor(
    tmp_path_factory: pytest.TempPathFactory, history: Sequence[Any], limit: int
) -> None:
    async def main() -> None:
        async with stored(tmp_path_factory.mktemp("history")) as it:
            serials: list[str] = []
            readers = [Reader(it.store)]
            for number, (move, which, some) in enumerate(history):
                if move == "read":
                    await readers[which % len(readers)].follow(limit=some, most=some)
                elif move == "step":
                    end = draft(
                        f"m-{number}",
                        name=headers.AI_STEP_END,
                        transport={headers.RUN_ID: f"r-{which}"},
                    )
                    await said(it.store, end)
                elif move == "publish" or not serials:
                    serials += await said(it.store, streamed(f"m-{number}", run_id=f"r-{which}"))
                elif move == "update":
                    await changed(it.store, update(serials[which % len(serials)], f"<{number}>"))
                else:
                    status = headers.COMPLETE if move == "end" else headers.STREAMING
                    serial = serials[which % len(serials)]
                    await it.store.write_session([append(serial, f"{number},", status)] * some)
                # Another one, whose cursor is that of this moment.
                readers.append(Reader(it.store))
                await readers[-1].follow(limit=limit)
            for reader in readers:
                await reader.follow(limit=limit)
                await reader.expect_page("what was followed")

    run(main())


def test_several_appends_fold_as_they_would_one_by_one() -> None:
    first = WireMessage(
        serial="1", version="1", data="a", transport={}, codec={headers.KIND: "text", "a": "1"}
    )
    changes = [
        WireMessage(
            serial="1",
            version=str(2 + number),
            action=action,
            data=data,
            transport={headers.STATUS: status, "other": "x"} if status else {},
            codec={"b": data},
        )
        for number, (action, data, status) in enumerate(
            [
                (Action.APPEND, "b", headers.STREAMING),
                (Action.APPEND, "c", headers.CANCELLED),
                (Action.UPDATE, "new", ""),
                (Action.APPEND, "d", ""),
                (Action.APPEND, "e", ""),
            ]
        )
    ]
    log = MessageLog()
    for delivery in (first, *changes):
        log.receive(delivery)
    assert folded(first, changes) == log.get("1")
    assert folded(first, changes).data == "newde"


def test_what_is_ephemeral_goes_with_a_later_write(storage: str, tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        async with stored(tmp_path, clock) as it:
            (first,) = await said(it.store, draft("m-0", ephemeral=True))
            clock.jump(59)
            (second,) = await said(it.store, draft("m-1", ephemeral=True))
            seen = await it.store.session_deliveries("talk", BEGINNING, 9)
            assert [each.serial for each in seen] == [first, second]
            assert [each.timestamp for each in seen] == [1.7e12, 1.7e12 + 59_000]
            clock.jump(2)
            await said(it.store, draft("m-0"), session="other talk")
            seen = await it.store.session_deliveries("talk", BEGINNING, 9)
            assert [each.serial for each in seen] == [second]
            assert not (await it.store.session_page("talk", None, 9)).messages

    run(main())


def test_what_was_appended_stands_in_its_message_alone(storage: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            serials = await said(it.store, streamed("m-0"), streamed("m-1", run_id=RUN))
            for _ in range(3):
                await it.store.write_session([append(serial, "x") for serial in serials])
            count = "SELECT count(*) FROM session_appends"
            assert look(tmp_path, count) == [(6,)]
            await changed(it.store, append(serials[0], "x", headers.CANCELLED))
            assert look(tmp_path, count) == [(3,)]
            end = draft("end", name=headers.AI_RUN_END, transport={headers.RUN_ID: RUN})
            await said(it.store, end)
            assert look(tmp_path, count) == [(0,)]
            page = await it.store.session_page("talk", None, 9)
            assert [each.data for each in page.messages] == [None, "xxx", "xxxx"]
            # One that is streamed for long takes in what it has now and then.
            (serial,) = await said(it.store, streamed("m-2"))
            for _ in range(6):
                await it.store.write_session([append(serial, "x") for _ in range(100)])
            assert look(tmp_path, count) == [(0,)]
            await changed(it.store, append(serial, "y"))
            assert look(tmp_path, count) == [(1,)]
            (newest,) = (await it.store.session_page("talk", None, 1)).messages
            assert newest.data == "x" * 600 + "y"

    run(main())


def test_an_encrypted_store_shows_nothing_that_was_said(storage: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await said(it.store, draft("m-0", data=SECRET, codec={"kind": SECRET}))
            (serial,) = await said(it.store, streamed("m-1"))
            await changed(it.store, append(serial, SECRET))
            assert not shows(tmp_path, SECRET)
            await changed(it.store, append(serial, SECRET, headers.COMPLETE))
            await said(it.store, streamed("m-2"))
            assert not shows(tmp_path, SECRET)
            # A document that is moved to another place is refused.
            look(
                tmp_path,
                "UPDATE session_messages SET client_id = 'eve' WHERE message_id LIKE '%m-0'",
            )
            with pytest.raises(StorageCorrupt, match="is not what was encrypted there"):
                await it.store.session_page("talk", None, 9)

    run(main())


def test_what_was_erased_in_part_is_gone_in_the_end(storage: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            (serial,) = await said(it.store, streamed("first"))
            await it.store.write_session([append(serial, "x") for _ in range(300)])
            await said(it.store, *(draft(f"m-{number}") for number in range(500)))
            look(
                tmp_path,
                "UPDATE sessions SET floor = head, erasing = ?",
                storage == "postgres" or 1,
            )
            nothing = Expiry(None, None, None, None, None)
            steps: list[int] = []
            while any((some := await it.store.collect_some(nothing)).values()):
                steps.append(some["parts"])
            assert sum(steps) == 801
            assert len(steps) > 2
            assert look(tmp_path, "SELECT count(*) FROM session_messages") == [(0,)]
            assert look(tmp_path, "SELECT count(*) FROM sessions WHERE erasing") == [(0,)]
            # A message that was there before may be published anew.
            (again,) = await said(it.store, draft("m-0"))
            assert again > serial

    run(main())


def test_an_append_of_which_nobody_knows_is_not_written_again() -> None:
    """What else is in its batch is, since that can be told from what is there."""
    asked: list[str] = []

    def answered(doubted: bool) -> list[Any]:
        batch = SessionBatch(
            OpenVault(), [publication("s", draft("m")), append("1" * 16, "x", session="s")]
        )
        rows = {"lock_sessions": [("s", 7, 3, 0)], "find_changed": [(7, int("1" * 16), 1, None)]}
        steps = batch.steps(1.0, doubted=doubted)
        try:
            name, given_rows = next(steps)
            while True:
                asked.extend([name] if given_rows else [])
                name, given_rows = steps.send(rows.get(name, []) if given_rows else [])
        except StopIteration as end:
            return [*end.value]

    assert answered(False) == [["0000000000000004"], ["0000000000000005"]]
    assert "insert_session_appends" in asked
    asked.clear()
    published, doubt = answered(True)
    assert published == ["0000000000000004"]
    assert isinstance(doubt, StorageBusy)
    assert "insert_session_appends" not in asked
