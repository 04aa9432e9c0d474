from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.audit import AuditTable
from perdure.effects.answer import Unknown
from perdure.effects.identity import OperationIdentity
from perdure.effects.support import EffectPolicy
from perdure.receipts import ReceiptStore, guard
from tests.commands import LOST, SETTLE, URL, Commands, doubtful
from tests.harness import run, sql
from tests.receipts import ASK, IDEMPOTENT, KEY, QUERYABLE, RETRY, Bank, receipts, shop


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    monkeypatch.chdir(tmp_path)
    return Commands(capsys)


RECEIPT = {
    "operation_key": KEY,
    "run_id": "invoice-17",
    "idempotency_key": "charge",
    "target": "bank",
    "ordinal": 1,
    "support": "at_least_once",
    "arguments_sha256": "ef2d127de37b942baad06145e54b0c619a1f22327b2ebbcfbec78f5564afe39d",
    "state": "ambiguous",
    "attempt": 1,
    "generation": 0,
    "version": 2,
    "problem": "ConnectionResetError: no\x1b[31m reply",
    "first_claimed_at": "2023-11-14T22:13:20Z",
    "claimed_at": "2023-11-14T22:13:20Z",
    "settled_at": "2023-11-14T22:13:20Z",
    "settle_seconds": 0.0,
    "resend_after": "2023-11-14T22:13:20Z",
    "lookups": 0,
    "lookup_at": "2023-11-14T22:13:20Z",
    "lookup_holder": None,
    "exhausted": False,
    "earlier_unknown": False,
    "residual_duplicate_risk": False,
    "decided_by": None,
    "decided_why": None,
    "handler_id": None,
    "result": None,
}


def test_receipts_are_listed_as_documents(tmp_path: Path, cli: Commands) -> None:
    doubtful(tmp_path)
    (receipt,) = cli.document()["receipts"]
    assert receipt.pop("holder").startswith("guard.")
    assert receipt == RECEIPT


def test_effects_are_listed_for_people(tmp_path: Path, cli: Commands) -> None:
    doubtful(tmp_path)

    async def two_more() -> None:
        async with shop(tmp_path) as it:
            for run_id in ("a", "b"):
                await guard(it.store, OperationIdentity(run_id, "mail", "post"), Bank(1).send)

    run(two_more())
    code, out, _ = cli()
    header, line = out.splitlines()
    columns = "effect run what target support state attempt since (UTC) next problem"
    assert (code, " ".join(header.split())) == (0, columns)
    assert line.split("  ")[0] == KEY[:15]
    for told in ("invoice-17", "charge/1", "bank", "ambiguous", "a person", "no\\x1b[31m reply"):
        assert told in line
    assert "\x1b" not in out
    everything = cli("--all")[1].splitlines()
    assert [row.split()[1] for row in everything[1:]] == ["b", "a", "invoice-17"]
    few = cli("--all", "--limit", "2")[1]
    assert few.splitlines()[-1] == "there are more than 2; see them with --limit"
    assert cli("--all", "--run", "a")[1].count("completed") == 1
    assert cli("--run", "a")[1] == "no effect of run a is ambiguous\n"
    assert cli("--run", "c", "--all")[1] == "no receipts of run c\n"


@pytest.mark.parametrize(
    ("policy", "bank", "comes", "resend"),
    [
        (ASK, Bank(LOST), "a person", "only if a person or its policy lets it"),
        (
            msgspec.structs.replace(QUERYABLE, reconcile_attempts=1),
            Bank(LOST, answers=[Unknown()]),
            "exhausted",
            "allowed since 2023-11-14 22:13:25Z",
        ),
        (RETRY, Bank(*[LOST] * 5), "may have been applied twice", "risk       may have been"),
        (IDEMPOTENT, Bank(*[LOST] * 5), "none, as long as its target", "risk       none, as long"),
    ],
)
def test_what_comes_next_is_told(
    tmp_path: Path, cli: Commands, policy: EffectPolicy, bank: Bank, comes: str, resend: str
) -> None:
    doubtful(tmp_path, policy, bank)
    assert comes in cli()[1]
    assert resend in cli("show", KEY)[1]


def test_looking_takes_no_lease_makes_no_file_and_leaves_the_living_alone(
    tmp_path: Path, cli: Commands
) -> None:
    for words in ((), ("show", KEY), ("settle", KEY, "--retry", *SETTLE), ("watch",)):
        code, _, err = cli(*words)
        assert (code, "there is no database at runs.db" in err) == (3, True)
    assert [*tmp_path.iterdir()] == []

    async def meanwhile() -> tuple[Any, Any]:
        arrived = asyncio.Event()
        bank = Bank(arrived, 1)
        async with ReceiptStore.open("sqlite:///runs.db") as store:
            sending = asyncio.create_task(guard(store, OperationIdentity("a", "b", "c"), bank.send))
            await bank.reached.wait()
            alive = await asyncio.to_thread(cli.document, "--all")
            sql(tmp_path, "UPDATE workers SET lease_until = 0")
            gone = await asyncio.to_thread(cli.document, "--all")
            arrived.set()
            assert await sending == 1
        assert sql(tmp_path, "SELECT count(*) FROM workers") == [(1,)]
        return alive["receipts"][0], gone["receipts"][0]

    alive, gone = run(meanwhile())
    assert (alive["state"], gone["state"], gone["problem"]) == (
        "in_flight",
        "ambiguous",
        "its worker is gone",
    )


def vanished(folder: Path, **changes: Any) -> None:
    """Leave an attempt of a worker that is gone without a word."""

    async def vanish() -> None:
        async with receipts(folder) as it:
            await it.storage.claim_effect(it.claim(await it.owner(), **changes))

    run(vanish())
    sql(folder, "UPDATE workers SET lease_until = 0")


def test_nobody_knows_when_the_attempt_of_a_silent_worker_ends(
    tmp_path: Path, cli: Commands
) -> None:
    vanished(tmp_path, support=QUERYABLE.support)
    assert "  asked " in cli()[1]
    assert "nobody knows when its attempt has ended" in cli("show", KEY)[1]


def test_what_looking_finds_and_people_decide_is_audited_once(
    tmp_path: Path, cli: Commands
) -> None:
    vanished(tmp_path)
    for _ in range(2):
        cli()
    assert cli("settle", KEY[:8], "--did-not-land", *SETTLE)[0] == 0

    async def audited() -> list[Any]:
        table = AuditTable("sqlite:///runs.db")
        try:
            return [record["operation_state"] for record in await table.read()]
        finally:
            await table.close()

    assert run(audited()) == ["failed", "ambiguous"]


# --- one effect ----------------------------------------------------------------------------------


def test_everything_known_of_an_effect_is_shown(tmp_path: Path, cli: Commands) -> None:
    doubtful(tmp_path)
    shown = cli.document("show", KEY[:8])
    del shown["receipt"]["holder"]
    place = " ".join(URL)
    assert shown == {
        "receipt": RECEIPT,
        "resend_allowed": False,
        "decisions": [],
        "worker": None,
        "run": None,
        "input": None,
        "commands": [
            f"perdure effects settle {KEY} {place} {said} --why WHY --expect-version 2"
            for said in ("--landed JSON", "--did-not-land", "--retry")
        ],
    }
    code, out, _ = cli("show", KEY)
    assert (code, "\x1b" in out) == (0, False)
    for line in ("run        invoice-17, which is no run in this database", "version    2"):
        assert f"\n  {line}\n" in out
    assert f"\n  {shown['commands'][1]}  # it was not applied" in out


def test_a_key_may_be_shortened_as_long_as_it_is_one(tmp_path: Path, cli: Commands) -> None:
    doubtful(tmp_path)
    code, _, err = cli("show", KEY[:7])
    assert (code, "is too short: type 8 characters" in err) == (2, True)
    code, _, err = cli("show", "op-ffffff")
    assert (code, "there is no receipt 'op-ffffff' in sqlite:///runs.db" in err) == (3, True)
    sql(tmp_path, "UPDATE receipts SET operation_key = 'op-51e32ffff', run_id = 'other'")
    doubtful(tmp_path)
    error = cli.document("show", KEY[:8], code=2)["error"]
    assert f"begins several keys: {KEY}, op-51e32ffff; type more" in error["message"]
    assert "run        other, " in cli("show", "op-51e32f")[1]
