from __future__ import annotations

import asyncio
import random

from perdure.canonical import INPUT_LIMIT_BYTES
from perdure.engine.store import RunStore
from perdure.engine.turns import TurnRow
from perdure.errors import ContinuityLost, InvalidSessionArgument, LeaseLost
from perdure.fence import Fence
from perdure.session import headers
from perdure.session.message import Action
from perdure.session.message_log import MessageLog
from perdure.session.store import Addition, SessionWrite
from perdure.testing.storage.expecting import ensure, expect, refusal
from perdure.testing.storage.scene import Scene
from perdure.testing.storage.talking import (
    BEGINNING,
    EVERYTHING,
    Reader,
    append,
    changed,
    draft,
    publication,
    revision,
    said,
    streamed,
    update,
)
from perdure.testing.storage.upkeep import collected, everything


async def what_was_said_comes_back(scene: Scene) -> None:
    """By every process, newest first and page by page; a message is there once by its id."""
    one, other = await scene.store(), await scene.store()
    data = {"text": "so \U0001f980", "of": [1.5, None, True]}
    first = draft("m-0", data=data, name="ai-input", codec={"kind": "text"})
    serials = await said(one, first, draft("m-1"), draft("m-1"))
    expect(serials[1], serials[2], "the serial of what is published twice at once")
    again = await said(other, draft("m-1", data="other"), draft("m-2"), draft("m-3"))
    expect((again[0], sorted({*serials, *again})), (serials[1], [serials[0], *again]), "serials")
    await said(other, draft("m-0"), session="other talk")
    page = await other.session_page("talk", None, 2)
    expect([each.serial for each in page.messages], again[:0:-1], "the newest page")
    ensure(page.more, "there are older ones")
    rest = await one.session_page("talk", again[1], 2)
    _, oldest = rest.messages
    found = (oldest.serial, oldest.data, oldest.name, oldest.client_id, oldest.codec, rest.more)
    expect(found, (serials[0], data, "ai-input", "ada", {"kind": "text"}, False), "a message")
    expect(oldest.transport, first.transport, "the headers of a message")
    heads = await other.session_heads(["talk", "other talk", "none"])
    expect(dict(heads), {"talk": again[-1], "other talk": serials[0]}, "the heads")
    nothing = await one.session_snapshot("none", 9)
    expect((len(nothing.messages), nothing.cursor), (0, BEGINNING), "a session that is not there")


async def versions_are_committed_in_their_order(scene: Scene) -> None:
    """Whoever has read up to a version misses nothing below it, however many write at once."""
    stores = [await scene.store() for _ in range(3)]
    names = ["talk", "a", "b"]
    reader = Reader(await scene.store())
    done = asyncio.Event()

    async def write(store: RunStore, number: int) -> None:
        for count in range(8):
            # Several sessions at once, in any order.
            some = [names[(number + shift) % 3] for shift in range(3)]
            writes = [publication(session, draft(f"{number}-{count}")) for session in some]
            for outcome in await store.write_session(writes):
                ensure(isinstance(outcome, list), f"a publication, not {outcome!r}")

    async def read() -> None:
        while not done.is_set():
            await reader.follow(limit=3)
            await asyncio.sleep(0.001)

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(stores[number % 3], number) for number in range(6)))
    done.set()
    await reading
    await reader.follow()
    versions = [int(each.version) for each in reader.deliveries]
    expect(versions, [*range(1, 49)], "what a reader was given meanwhile")
    await reader.expect_page("what was followed while it was written")


async def every_cursor_leads_to_the_same_messages(scene: Scene) -> None:
    """Whenever somebody read up to it, and whatever was joined or replaced since."""
    store = await scene.store()
    dice = random.Random(6)  # noqa: S311 - it draws cases
    readers = [Reader(store) for _ in range(6)]
    open_: list[str] = []
    for number in range(60):
        move = dice.choice(["publish", "append", "append", "append", "update", "end"])
        if move == "publish" or not open_:
            open_ += await said(store, streamed(f"m-{number}"))
        elif move == "update":
            await changed(store, update(dice.choice(open_), f"<{number}>"))
        else:
            serial = dice.choice(open_)
            status = headers.COMPLETE if move == "end" else headers.STREAMING
            await changed(store, append(serial, f"{number},", status))
            if move == "end":
                open_.remove(serial)
        await dice.choice(readers).follow(limit=dice.randint(1, 3), most=dice.randint(1, 9))
    for place, reader in enumerate(readers):
        await reader.follow(limit=place + 1)
        await reader.expect_page("what was followed from different cursors")


async def what_was_streamed_becomes_one_message(scene: Scene) -> None:
    """When its stream or its step ends, or when it is replaced; before that, it is appends."""
    process = await scene.process()
    store, fence = process.store, await process.start()
    for end in ("stream", "step", "update"):
        (serial,) = await said(store, streamed(end, run_id="run-1"), fence=fence)
        reader = Reader(store)
        await reader.follow()
        for text in "abc":
            await changed(store, append(serial, text, fence=fence))
        seen = await store.session_deliveries("talk", reader.cursor, EVERYTHING)
        appends = [(each.action, each.data) for each in seen]
        expect(appends, [(Action.APPEND, text) for text in "abc"], "what is appended")
        if end == "stream":
            await changed(store, append(serial, "d", headers.COMPLETE, fence=fence))
        elif end == "step":
            transport = {headers.RUN_ID: "run-1"}
            step_end = draft("end", name=headers.AI_STEP_END, transport=transport)
            await said(store, step_end, fence=fence)
        else:
            await changed(store, update(serial, "whole", fence=fence))
        since = await store.session_deliveries("talk", reader.cursor, EVERYTHING)
        whole = {"stream": "abcd", "step": "abc", "update": "whole"}[end]
        one = [(each.action, each.data) for each in since if each.serial == serial]
        expect(one, [(Action.UPDATE, whole)], f"what is delivered after the end of a {end}")
        expect(await store.session_deliveries("talk", since[-1].version, 9), [], "what is left")
        page = await store.session_page("talk", None, EVERYTHING)
        (message,) = [each for each in page.messages if each.serial == serial]
        expect((message.data, message.version), (whole, one and since[0].version), "the message")
        await reader.follow()
        await reader.expect_page("what was followed over an end")


async def what_stands_under_another_fence_is_not_written(scene: Scene) -> None:
    """Neither by a worker that lost its run, nor to what is of another run; the rest is."""
    process = await scene.process()
    store, fence = process.store, await process.start("run-1")
    other = await process.start("run-2")
    (mine,) = await said(store, streamed("mine", run_id="run-1"), fence=fence)
    (his,) = await said(store, streamed("his", run_id="run-2"), fence=other)
    before = await store.session_heads(["talk"])
    stale = Fence("run-1", fence.holder, fence.generation + 1)
    outcomes = await store.write_session(
        [
            publication("talk", draft("late"), draft("later"), fence=stale),
            append(mine, "late", fence=stale),
            update(mine, "late", fence=Fence("run-1", "nobody", 1)),
            append(his, "late", fence=fence),
            update(his, "late", fence=fence),
            publication("new", draft("late"), fence=stale),
        ]
    )
    refused = [LeaseLost] * 3 + [InvalidSessionArgument] * 2 + [LeaseLost]
    expect([type(outcome) for outcome in outcomes], refused, "what is refused")
    expect(await store.session_heads(["talk", "new"]), before, "the heads after refusals")
    outcomes = await store.write_session(
        [append(mine, "late", fence=stale), append(mine, "on", fence=fence)]
    )
    ensure(isinstance(outcomes[0], LeaseLost), "one that is refused beside another")
    ensure(isinstance(outcomes[1], list), f"one beside another that is refused: {outcomes[1]!r}")
    page = await store.session_page("talk", None, 9)
    expect([each.data for each in page.messages], ["", "on"], "the messages")
    await store.release_run(fence)
    (outcome,) = await store.write_session([append(mine, "late", fence=fence)])
    ensure(isinstance(outcome, LeaseLost), "one by a worker that gave its run back")


async def a_snapshot_is_of_one_moment(scene: Scene) -> None:
    """It continues without a gap and without anything twice, whoever writes meanwhile."""
    writer, store = await scene.store(), await scene.store()
    (serial,) = await said(writer, streamed("m"))
    done = asyncio.Event()

    async def write() -> None:
        for number in range(120):
            await changed(writer, append(serial, f"{number},"))
            if number % 9 == 0:
                await changed(writer, update(serial, "".join(f"{n}," for n in range(number + 1))))
        done.set()

    async def look() -> None:
        while not done.is_set():
            snapshot = await store.session_snapshot("talk", 9)
            (message,) = snapshot.messages
            count = message.text.count(",")
            whole = "".join(f"{number}," for number in range(count))
            expect(message.data, whole, "the text of a snapshot")
            expect(message.version, snapshot.cursor, "the version of the one message, the cursor")
            log = MessageLog()
            log.receive(message)
            for delivery in await store.session_deliveries("talk", snapshot.cursor, EVERYTHING):
                ensure(log.receive(delivery), "a snapshot has nothing from behind its cursor")
            held = log.get(serial)
            text = held.text if held else ""
            whole = "".join(f"{number}," for number in range(text.count(",")))
            expect(text, whole, "a snapshot with what is delivered behind its cursor")
            await asyncio.sleep(0)

    await asyncio.gather(write(), look(), look())


async def what_is_no_cursor_of_the_session_is_refused(scene: Scene) -> None:
    """One from the future, of another form, or of a session that was never written to."""
    store = await scene.store()
    await said(store, draft("m-0"), draft("m-1"))
    expect(await store.session_deliveries("none", BEGINNING, 9), [], "of nothing")
    head = (await store.session_heads(["talk"]))["talk"]
    expect(await store.session_deliveries("talk", head, 9), [], "behind the last one")
    wrong = ("talk", f"{int(head) + 1:016}"), ("talk", "1"), ("talk", ""), ("none", head)
    for session, cursor in (*wrong, ("talk", "-00000000000001" + "0"), ("talk", "x" * 16)):
        with refusal(ContinuityLost, f"deliveries behind {cursor!r}"):
            await store.session_deliveries(session, cursor, 9)
    with refusal(InvalidSessionArgument, "a page before what is no serial"):
        await store.session_page("talk", "1", 9)


async def what_is_ephemeral_is_delivered_and_not_kept(scene: Scene) -> None:
    """It is in no page and no snapshot, and cannot be changed."""
    store = await scene.store()
    serials = await said(store, draft("m-0"), draft("m-1", ephemeral=True), draft("m-2"))
    deliveries = await store.session_deliveries("talk", BEGINNING, 9)
    expect([each.ephemeral for each in deliveries], [False, True, False], "deliveries")
    page, snapshot = (
        await store.session_page("talk", None, 2),
        await store.session_snapshot("talk", 2),
    )
    for messages in (page.messages, snapshot.messages):
        expect([each.serial for each in messages], [serials[2], serials[0]], "what is kept")
    ensure(not page.more, "there is nothing older")
    outcomes = await store.write_session([append(serials[1], "x"), update(serials[1], "x")])
    expect([type(each) for each in outcomes], [InvalidSessionArgument] * 2, "changes of it")


async def what_cannot_be_stored_is_refused(scene: Scene) -> None:
    """Before anything is written, and without keeping the rest from being written."""
    store = await scene.store()
    (serial,) = await said(store, streamed("m"))
    large = "x" * INPUT_LIMIT_BYTES
    wrong: list[SessionWrite] = [
        *(publication(name, draft("n")) for name in ("", "a\0b", "x" * 513, "\ud800", "a\nb")),
        publication("talk", draft("n"), draft("large", data=large)),
        publication("talk", draft("n"), draft("odd", data=float("nan"))),
        publication("talk", draft("n\0")),
        publication("talk", draft("n" * 513)),
        publication("talk", draft("n", transport={headers.RUN_ID: "r\0"})),
        publication("talk", draft("n", transport={"odd": 1})),
        publication("talk", draft("n", name="\ud800")),
        append(serial, large),
        append(serial, "\ud800"),
        append(f"{int(serial) + 9:016}", "x"),
        append("", "x"),
        update("1", "x"),
        Addition(session="none", client_id="ada", serial=serial, change=revision("x")),
    ]
    *refused, fine = await store.write_session([*wrong, append(serial, "fine")])
    for write, outcome in zip(wrong, refused, strict=True):
        ensure(isinstance(outcome, InvalidSessionArgument), f"{write!s:.200}: {outcome!r:.99}")
    ensure(isinstance(fine, list), f"what may be written beside them: {fine!r}")
    (message,) = (await store.session_page("talk", None, 9)).messages
    expect(message.data, "fine", "what is written")
    with refusal(InvalidSessionArgument, "a page of what is no session"):
        await store.session_page("a\0b", None, 9)
    expect([row.session for row in await store.list_sessions(9)], ["talk"], "the sessions")


async def an_erased_session_begins_anew(scene: Scene) -> None:
    """Nothing of it is read any more, and no cursor from before is one of what comes then."""
    store, other = await scene.store(), await scene.store()
    (serial,) = await said(store, streamed("first"))
    await store.write_session([append(serial, "x") for _ in range(450)])
    await said(store, *(draft(f"m-{number}") for number in range(450)))
    await said(store, draft("m-0"), session="other talk")
    head = (await store.session_heads(["talk"]))["talk"]
    ensure(await other.erase_session("talk"), "there was something to erase")
    ensure(not await other.erase_session("talk"), "there is nothing more to erase")
    ensure(not await other.erase_session("none"), "there was nothing to erase")
    snapshot = await store.session_snapshot("talk", 9)
    expect((len(snapshot.messages), snapshot.cursor), (0, head), "an erased session")
    for cursor in (BEGINNING, f"{int(head) - 1:016}"):
        with refusal(ContinuityLost, "deliveries behind a cursor from before"):
            await store.session_deliveries("talk", cursor, 9)
    (outcome,) = await store.write_session([append(serial, "x")])
    ensure(isinstance(outcome, InvalidSessionArgument), f"a change from before: {outcome!r}")
    expect([row.session for row in await store.list_sessions(9)], ["other talk"], "the sessions")
    (again,) = await said(store, draft("m-0", data="again"))
    ensure(again > head, "what comes then has a higher serial")
    expect(
        [each.data for each in (await other.session_page("talk", None, 9)).messages], ["again"], ""
    )
    rows = await store.list_sessions(9)
    expect([(row.session, row.head) for row in rows][:1], [("talk", again)], "the last session")
    seen = await store.session_deliveries("talk", head, 9)
    expect([each.serial for each in seen], [again], "what is delivered since")


async def sessions_that_were_silent_are_collected(scene: Scene) -> None:
    """As many as were counted, unless a turn of one goes on."""
    process = await scene.process()
    store = process.store
    fence = await process.start("run-1")
    await store.note_turn(TurnRow("run-1", "kept", "e-1"))
    for session in ("kept", "talk", "gone"):
        await said(store, draft("m-0"), streamed("m-1"), session=session)
    expiry = everything(store, "sessions")
    expect((await store.count_expired(expiry))["sessions"], 2, "silent sessions")
    expect((await collected(store, expiry))["sessions"], 2, "sessions that are gone")
    expect((await store.count_expired(expiry))["sessions"], 0, "silent sessions afterwards")
    expect([row.session for row in await store.list_sessions(9)], ["kept"], "what is left")
    with refusal(ContinuityLost, "a cursor of a session that is gone"):
        await store.session_deliveries("talk", BEGINNING, 9)
    await process.end(fence)
    expect((await collected(store, expiry))["sessions"], 1, "one whose turn has ended")
