from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from perdure import Context, ReceiptStore
from perdure.effects.answer import NeverWill
from perdure.effects.receipt import Move
from perdure.engine.reencryption import reencrypt
from perdure.storage.pieces import pack
from tests.encrypting import keyring, shows, stored_value
from tests.erasing import LONG, effect, filled
from tests.harness import app_on, run, sql, stored
from tests.storages import url_of

HIDDEN = (
    *("input", "result", "failure", "traceback", "piece-0", "piece-2", "tail", "message", "wait"),
    *("answer", "refusal", "said", "arguments", "denial"),
)
OPEN = ("key", "target")
PACKED = pack(LONG)[1][:60]
DIGESTS = (b'"MARK-input"', b"begins alike, ", b"begins alike, MARK-piece-0, ")


async def _fill(folder: Path, *, encrypted: bool) -> None:
    vault = keyring().vault() if encrypted else None
    async with stored(folder, vault=vault) as it:
        for run_id, mark in (("done", "MARK"), ("failed", "MARK")):
            await filled(it, run_id, mark)
        await it.store.retire_worker(it.fence.holder)


def _seen(folder: Path) -> list[str]:
    seen = [mark for mark in (*HIDDEN, *OPEN) if shows(folder, f"MARK-{mark}")]
    seen += ["packed"] if shows(folder, PACKED) else []
    digests = [hashlib.sha256(given).digest() for given in DIGESTS]
    return seen + ["digest" for digest in digests if shows(folder, digest)]


@pytest.mark.usefixtures("storage")
def test_who_has_no_key_sees_nothing_of_what_was_given_or_came_of_it(tmp_path: Path) -> None:
    run(_fill(tmp_path, encrypted=True))
    assert _seen(tmp_path) == [*OPEN]


@pytest.mark.usefixtures("storage")
def test_encrypting_what_a_store_holds_leaves_none_of_it_behind(tmp_path: Path) -> None:
    async def encrypt() -> None:
        app = app_on(tmp_path, encryption=keyring(accept_plaintext=True))
        async with app.connect():
            async for _ in reencrypt(app.store):
                pass
            assert not any((await app.store.count_stale()).values())
            assert await app.store.end_resealing(whole=True, rewrite=True)
            # While others have it open, too.
            assert _seen(tmp_path) == [*OPEN]

    run(_fill(tmp_path, encrypted=False))
    assert _seen(tmp_path) == [*HIDDEN, *OPEN, "packed", *["digest"] * len(DIGESTS)]
    run(encrypt())
    assert _seen(tmp_path) == [*OPEN]


@pytest.mark.usefixtures("storage")
def test_what_a_person_writes_of_an_effect_is_hidden_and_why_something_was_erased_is_not(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            done = await effect(it, it.fence, "pay", Move.DOUBT, "MARK-doubt")
            doubt = await it.store.read_receipt(done.operation_key)
            assert doubt is not None
            async with ReceiptStore(url_of(tmp_path), encryption=keyring()) as receipts:
                settled = await receipts.settle(
                    done.operation_key,
                    NeverWill("MARK-never"),
                    by="ada",
                    why="MARK-statement",
                    expect_version=doubt.version,
                )
                assert (settled.decided_why, settled.problem) == ("MARK-statement", "MARK-never")
                (decision,) = await receipts.decisions(done.operation_key)
                assert decision.decided_why == "MARK-statement"
                assert not shows(tmp_path, "MARK")
                await it.store.retire_worker(it.fence.holder)
                await it.store.request_cancel(it.fence.run_id)
                await it.store.erase_run(it.fence.run_id, by="ada", why="request 17")
        assert shows(tmp_path, "request 17")

    run(main())


@pytest.mark.usefixtures("storage")
def test_a_value_takes_as_many_bytes_more_as_the_pages_say(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path, vault=keyring().vault()) as it:
            await it.append("model", 1, b'"12345678"')

    run(main())
    stored_input = stored_value(tmp_path, "records", "input_tail")
    assert len(stored_input) == len(b'"12345678"') + 38 + len("a")


def test_equal_values_are_not_alike(tmp_path: Path) -> None:
    app = app_on(tmp_path, encryption=keyring())

    @app.run(version=1)
    async def work(context: Context, value: str) -> str:
        return value

    async def main() -> None:
        async with app:
            for number in range(3):
                await (await app.start(work, "the same", run_id=f"run-{number}")).result()

    run(main())
    values = [value for row in sql(tmp_path, "SELECT input, output FROM runs") for value in row]
    assert len({*values, *(value[10:] for value in values)}) == 12
