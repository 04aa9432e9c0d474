from __future__ import annotations

import pickle
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import App
from perdure.encryption import Keyring
from perdure.errors import InvalidOptions, KeyUnavailable, MissingExtra

KEY = b64encode(bytes(range(32))).decode()


def test_a_key_is_32_random_bytes_in_base64() -> None:
    assert len(b64decode(KEY)) == 32
    assert Keyring.generate_key() != KEY


def test_bytes_and_their_base64_are_the_same_key() -> None:
    text = Keyring(current="k", keys={"k": KEY}).vault()
    data = Keyring(current="k", keys={"k": b64decode(KEY)}).vault()
    assert data.unseal(text.seal(b"value", "here"), "here") == b"value"
    assert data.keys == text.keys


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"current": "b"}, "the current key 'b' is not among the keys: 'k'"),
        ({"keys": {}}, "not among the keys: none"),
        ({"keys": {"k": b"short"}}, "'k' is not 32 bytes"),
        ({"keys": {"k": KEY[:-8]}}, "'k' is not 32 bytes"),
        ({"keys": {"k": "no base64 at all"}}, "'k' is not 32 bytes"),
        ({"keys": {"k": None}}, "'k' is not 32 bytes"),
        ({"keys": {"a:b": KEY}}, "'a:b' cannot be the id of a key"),
        ({"keys": {"": KEY}}, "'' cannot be the id of a key"),
        ({"keys": {"x" * 65: KEY}}, "cannot be the id of a key"),
        ({"cipher": "rot13"}, "the cipher 'rot13' is not one of 'aes-256-gcm'"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_and_not_shown(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOptions, match=message) as caught:
        Keyring(**{"current": "k", "keys": {"k": KEY}, **options})
    assert KEY[:-8] not in str(caught.value)


def test_a_keyring_shows_ids_and_no_keys() -> None:
    keyring = Keyring(current="k", keys={"k": KEY, "b": bytes(32)})
    assert repr(keyring) == "Keyring(current='k', keys=['b', 'k'])"
    with pytest.raises(TypeError, match="is not pickled"):
        pickle.dumps(keyring)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "perdure.storage.sealing", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[encryption\]'"):
        Keyring(current="k", keys={"k": KEY})


def test_a_key_file_holds_a_keyring(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    document = {"current": "k", "keys": {"k": KEY, "b": KEY}, "accept_plaintext": True}
    path.write_bytes(msgspec.json.encode(document))
    keyring = Keyring.read(path)
    assert (keyring.current, keyring.key_ids, keyring.accept_plaintext) == ("k", ["b", "k"], True)
    assert App("sqlite:///runs.db", encryption=keyring).encryption is keyring


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read .No such file"),
        ("", "is not a key file"),
        ('{"current": "k"}', "is not a key file .*`keys`"),
        ('{"current": "k", "keys": {"k": 1}}', "is not a key file"),
        ('{"current": "k", "keys": {}, "key": "k"}', "is not a key file .*`key`"),
        ('{"current": "k", "keys": {"k": "c2VjcmV0"}}', "cannot be used: the key 'k' is not 32"),
        (f'{{"current": "k", "keys": {{"b": "{KEY}"}}}}', "cannot be used: the current key 'k'"),
    ],
)
def test_a_file_without_keys_is_refused_by_name(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KeyUnavailable, match=f"keys.json.*{message}") as caught:
        Keyring.read(path)
    assert "c2VjcmV0" not in str(caught.value)
