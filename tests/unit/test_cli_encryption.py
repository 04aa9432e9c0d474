from __future__ import annotations

import asyncio
import json
import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from perdure import EffectAmbiguous
from perdure.cli import main
from perdure.encryption import Keyring
from tests.commands import LOST
from tests.encrypting import KEYS, keyring, shows
from tests.harness import app_on, once, run, sql
from tests.receipts import ASK, Bank, shop
from tests.storages import url_of

FILE = "keys.json"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_KEY_FILE", raising=False)
    monkeypatch.setenv("PERDURE_URL", "sqlite:///runs.db")


class Typed:
    """Runs commands in the current folder; returns exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = self._capsys.readouterr()
        return code, out, err

    def document(self, *words: str) -> Any:
        _, out, err = self(*words, "--json")
        assert err == ""
        return json.loads(out)


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def fill(folder: Path, encryption: Keyring | None, run_id: str = "run-1") -> None:
    """Leave a run in the database of a folder."""
    app = app_on(folder, encryption=encryption)

    @app.run(version=1)
    async def work(context: Any, value: str) -> str:
        return await context.call(_echo, value)

    async def whole() -> None:
        async with app:
            await (await app.start(work, "MARK", run_id=run_id)).result()

    run(whole())


async def _echo(value: str) -> str:
    return value


def test_a_new_key_file_is_its_owners_alone_and_gets_further_keys(
    typed: Typed, tmp_path: Path
) -> None:
    code, out, _ = typed("key", "new", "--key-file", FILE, "--id", "2025")
    assert (code, out.startswith("keys.json holds the key 2025: keep a copy")) == (0, True)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert (Keyring.read(FILE).current, Keyring.read(FILE).key_ids) == ("2025", ["2025"])
    before = Keyring.read(FILE).vault().seal(b"value", "here")
    assert typed.document("key", "new", "--key-file", FILE, "--id", "2026") == {
        "key_file": FILE,
        "key_id": "2026",
        "current": "2025",
    }
    code, out, _ = typed("key", "new", "--key-file", FILE, "--current")
    assert "which encrypts from now on; 2025 decrypts" in out
    after = Keyring.read(FILE)
    assert len(after.key_ids) == 3
    assert after.current not in {"2025", "2026"}
    assert after.vault().unseal(before, "here") == b"value"
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_without_a_file_the_key_is_printed(typed: Typed) -> None:
    keys = [json.loads(typed("key", "new", "--id", "k")[1])["keys"]["k"] for _ in range(2)]
    assert keys[0] != keys[1]
    Keyring(current="k", keys={"k": keys[0]})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("key",), "perdure key takes a command: new"),
        (("key", "new", "--key-file", "no/where.json"), "no/where.json cannot be written"),
        (("key", "new", "--id", "a b"), "'a b' cannot be the id of a key"),
        (("runs", "--key-file", "no.json"), "no.json cannot be read"),
        (("runs", "--key-file", "k", "--app", "shop:app"), "leave --key-file out"),
        (("reencrypt",), "with which key? Pass --key-file FILE or set PERDURE_KEY_FILE"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(
    typed: Typed, words: tuple[str, ...], message: str
) -> None:
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_key_that_is_there_is_not_replaced(typed: Typed) -> None:
    typed("key", "new", "--key-file", FILE, "--id", "k")
    before = Path(FILE).read_bytes()
    code, _, err = typed("key", "new", "--key-file", FILE, "--id", "k")
    assert (code, "there is a key 'k' in the file" in err) == (2, True)
    Path("other.json").write_text("{}")
    assert "not a key file" in typed("key", "new", "--key-file", "other.json")[2]
    assert (Path(FILE).read_bytes(), Path("other.json").read_text()) == (before, "{}")


def test_commands_read_with_the_key_of_the_file_or_say_what_is_missing(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed("key", "new", "--key-file", FILE)
    fill(tmp_path, Keyring.read(FILE))
    looks = (("show", "run-1"), ("runs",), ("show", "run-1", "--operation", "call/1"))
    looks += (("effects", "--all"), ("doctor",))
    for words in looks:
        code, _, err = typed(*words)
        assert (code, "the store is encrypted" in err) == (2, True)
        assert "sqlite:///runs.db" in err
        assert "--key-file" in err
    for words in looks[:3]:
        code, out, err = typed(*words, "--key-file", FILE)
        assert (code, err) == (0, "")
    assert '"MARK"' in out
    monkeypatch.setenv("PERDURE_KEY_FILE", FILE)
    for words in looks:
        code, out, err = typed(*words)
        assert (code, err) == (0, "")


def test_a_decision_is_written_with_the_key(typed: Typed, tmp_path: Path) -> None:
    typed("key", "new", "--key-file", FILE)

    async def doubtful() -> None:
        async with shop(tmp_path, encryption=Keyring.read(FILE)) as it:
            with pytest.raises(EffectAmbiguous):
                await it.pay_in_time(Bank(LOST), ASK)

    run(doubtful())
    ((key,),) = sql(tmp_path, "SELECT operation_key FROM receipts")
    shown = typed.document("effects", "show", key, "--key-file", FILE, "--url", url_of(tmp_path))
    assert all(f" --key-file {FILE}" in command for command in shown["commands"])
    settle = ("--landed", '"MARK-paid"', "--why", "MARK-seen", "--expect-version", "2")
    code, _, err = typed("effects", "settle", key, *settle, "--by", "ada", "--key-file", FILE)
    assert (code, err) == (0, "")
    assert not shows(tmp_path, "MARK")
    shown = typed.document("effects", "show", key, "--key-file", FILE)
    assert shown["receipt"]["result"] == "MARK-paid"
    assert shown["decisions"][0]["why"] == "MARK-seen"


def test_a_store_is_encrypted_and_its_key_changed(typed: Typed, tmp_path: Path) -> None:
    fill(tmp_path, None)
    typed("key", "new", "--key-file", FILE, "--id", "old")
    code, _, err = typed("runs", "--key-file", FILE)
    plaintext = f"`perdure reencrypt --plaintext --key-file {FILE}`"
    assert (code, f"not encrypted yet: {plaintext}" in err) == (4, True)
    assert typed("reencrypt", "--key-file", FILE)[0] == 4
    counted = typed.document("reencrypt", "--plaintext", "--key-file", FILE, "--dry-run")
    assert (counted["dry_run"], counted["left"]["runs"], counted["key_id"]) == (True, 1, "old")
    assert shows(tmp_path, "MARK")
    code, out, _ = typed("reencrypt", "--plaintext", "--key-file", FILE)
    assert (code, "encrypted 1 runs, 1 records" in out) == (0, True)
    assert f"`perdure reencrypt --key-file {FILE} --rewrite`" in out
    code, out, _ = typed("reencrypt", "--key-file", FILE, "--rewrite")
    assert "--rewrite" not in out
    assert not shows(tmp_path, "MARK")
    typed("key", "new", "--key-file", FILE, "--id", "new", "--current")
    done = typed.document("reencrypt", "--key-file", FILE)
    assert (done["key_id"], done["encrypted"]["runs"], done["left"]["runs"]) == ("new", 1, 0)
    document = json.loads(Path(FILE).read_text())
    del document["keys"]["old"]
    Path(FILE).write_text(json.dumps(document))
    code, out, err = typed("show", "run-1", "--key-file", FILE)
    assert (code, err, "MARK" in out) == (0, "", True)


def test_what_is_left_is_told_and_makes_the_exit_code_1(typed: Typed, tmp_path: Path) -> None:
    run(once(_app(tmp_path), "work"))
    sql(tmp_path, "UPDATE runs SET output = CAST('forged' AS BLOB)")
    _key_file("b", "a")
    code, out, _ = typed("reencrypt", "--key-file", FILE)
    assert (code, "the output of run run-1 is not encrypted" in out) == (1, True)
    assert "1 runs, 0 records" in out.splitlines()[-1]
    assert sql(tmp_path, "SELECT count(*) FROM keys") == [(2,)]
    code, _, err = typed("show", "run-1", "--key-file", FILE)
    assert (code, "the output of run run-1 is not encrypted" in err) == (4, True)


def test_a_live_worker_with_another_key_keeps_that_one_from_being_called_unneeded(
    typed: Typed, tmp_path: Path
) -> None:
    _key_file("a")
    live = _app(tmp_path, keyring("a"))

    async def beside() -> None:
        async with live:
            await (await live.start("work", run_id="run-1")).result()
            _key_file("b", "a")
            ((holder,),) = sql(tmp_path, "SELECT holder FROM workers WHERE gone = 0")
            code, out, _ = await asyncio.to_thread(typed, "reencrypt", "--key-file", FILE)
            assert (code, "no other key" in out) == (1, False)
            assert f"1 worker is alive ({holder}) and may still write with another key" in out
            assert f"run `perdure reencrypt --key-file {FILE}` again" in out
            done = await asyncio.to_thread(typed.document, "reencrypt", "--key-file", FILE)
            assert (done["alive"], sum(done["left"].values())) == ([holder], 0)
            await (await live.start("work", run_id="run-2")).result()

    run(beside())
    # What it wrote behind that is not lost: the store asks for its key.
    _key_file("b")
    code, _, err = typed("show", "run-2", "--key-file", FILE)
    assert (code, "holds what is encrypted with 'a'" in err) == (2, True)
    _key_file("b", "a")
    code, out, _ = typed("reencrypt", "--key-file", FILE)
    assert (code, out.splitlines()[-2]) == (
        0,
        "everything is encrypted with it, and no other key is needed",
    )
    _key_file("b")
    assert typed("show", "run-2", "--key-file", FILE)[0] == 0


def test_beside_workers_that_all_have_the_new_key_the_other_one_is_called_unneeded(
    typed: Typed, tmp_path: Path
) -> None:
    run(once(_app(tmp_path), "work"))
    _key_file("b", "a")

    async def beside() -> None:
        async with _app(tmp_path, Keyring.read(FILE)):
            words = ("reencrypt", "--key-file", FILE, "--beside-workers")
            code, out, _ = await asyncio.to_thread(typed, *words)
            assert (code, "no other key is needed" in out) == (0, True)

    run(beside())
    assert sql(tmp_path, "SELECT key_id FROM keys") == [("b",)]


def test_doctor_counts_what_the_only_key_cannot_read(typed: Typed, tmp_path: Path) -> None:
    fill(tmp_path, keyring("a"))
    fill(tmp_path, keyring("b", only=False), "run-2")
    sql(tmp_path, "DELETE FROM keys WHERE key_id = 'a'")
    _key_file("b", "a")
    assert typed.document("doctor", "--key-file", FILE)["findings"] == []
    _key_file("b")
    found = typed.document("doctor", "--key-file", FILE)
    (finding,) = found["findings"]
    assert (found["well"], finding["code"]) == (False, "locked")
    assert finding["message"].startswith("1 runs, 1 records, 1 receipts hold what is not")
    code, out, _ = typed("doctor", "--key-file", FILE)
    assert (code, "is well" in out, f"`perdure reencrypt --key-file {FILE}`" in out) == (1, 0, 1)


def _key_file(current: str, *others: str) -> None:
    keys = {name: b64encode(KEYS[name]).decode() for name in (current, *others)}
    Path(FILE).write_text(json.dumps({"current": current, "keys": keys}))


def _app(folder: Path, encryption: Keyring | None = None) -> Any:
    app = app_on(folder, encryption=encryption or keyring("a"))

    @app.run(version=1)
    async def work(context: Any) -> str:
        return "MARK"

    return app
