"""What is sealed comes back as it was, in its place and with its key, or not at all."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.encryption import Cipher, Keyring
from perdure.errors import KeyUnavailable, StorageCorrupt
from perdure.storage.documents import Documents
from perdure.storage.pieces import carve
from perdure.storage.sealing import SealingVault
from perdure.storage.vault import SEALED, SEALED_TEXT, OpenVault, Vault

CIPHERS = st.sampled_from(get_args(Cipher))
PLACES = st.text(st.characters(codec="utf-8"), max_size=30)
TEXTS = st.text(st.characters(codec="utf-8"))
LONG = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(lambda text: text * 600)
KEYS = {"2025": b"o" * 32, "2026-11": b"n" * 32}


def vault(cipher: Cipher, current: str = "2026-11", **keys: bytes) -> Vault:
    return Keyring(current=current, keys={**KEYS, **keys}, cipher=cipher).vault()


@given(CIPHERS, CIPHERS, st.binary(), TEXTS, PLACES)
def test_values_come_back_whatever_cipher_and_key_is_current(
    one: Cipher, other: Cipher, data: bytes, text: str, place: str
) -> None:
    before, now = vault(one, "2025"), vault(other)
    sealed, sealed_text = before.seal(data, place), before.seal_text(text, place)
    assert now.unseal(sealed, place) == before.unseal(sealed, place) == data
    assert now.unseal_text(sealed_text, place) == text
    assert sealed.startswith(before.keys.head)
    assert sealed.startswith(SEALED)
    assert sealed_text.startswith(before.keys.head_text)
    assert sealed_text.startswith(SEALED_TEXT)
    assert "\x00" not in sealed_text
    assert before.seal(data, place) != sealed


@given(CIPHERS, st.binary(max_size=80), st.data())
def test_one_changed_bit_is_noticed(cipher: Cipher, data: bytes, draw: st.DataObject) -> None:
    it = vault(cipher)
    sealed = bytearray(it.seal(data, "here"))
    bit = draw.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    # In the id it may be that of a key that is not there.
    with pytest.raises((StorageCorrupt, KeyUnavailable)):
        it.unseal(bytes(sealed), "here")


@given(CIPHERS, TEXTS, st.data())
def test_one_changed_character_is_noticed(cipher: Cipher, text: str, draw: st.DataObject) -> None:
    it = vault(cipher)
    sealed = it.seal_text(text, "here")
    index = draw.draw(st.integers(0, len(sealed) - 1))
    other = draw.draw(st.characters(codec="utf-8").filter(lambda it: it != sealed[index]))
    with pytest.raises((StorageCorrupt, KeyUnavailable)):
        it.unseal_text(sealed[:index] + other + sealed[index + 1 :], "here")


@given(CIPHERS, st.binary(), st.data())
def test_what_was_cut_short_or_moved_is_noticed(
    cipher: Cipher, data: bytes, draw: st.DataObject
) -> None:
    it = vault(cipher)
    sealed = it.seal(data, "here")
    end = draw.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(StorageCorrupt):
        it.unseal(sealed[:end], "here")
    with pytest.raises(StorageCorrupt, match="there is not what was encrypted there"):
        it.unseal(sealed, "there|with facts")


@given(CIPHERS, st.binary())
def test_another_key_of_the_same_id_opens_nothing(cipher: Cipher, data: bytes) -> None:
    sealed = vault(cipher).seal(data, "here")
    other = SealingVault("a", {**KEYS, "a": bytes(32)}, cipher=cipher, accept_plaintext=False)
    assert other.unseal(sealed, "here") == data
    with pytest.raises(StorageCorrupt):
        vault(cipher, **{"2026-11": bytes(32)}).unseal(sealed, "here")


@given(st.binary(min_size=32, max_size=32))
def test_names_tell_nothing_without_the_key_and_are_the_same_with_it(digest: bytes) -> None:
    names = {vault("aes-256-gcm", key_id).name(digest) for key_id in KEYS for _ in range(2)}
    assert len(names) == len(KEYS)
    assert digest not in names
    assert OpenVault().name(digest) == digest


@given(TEXTS)
def test_no_text_looks_sealed_that_is_not(text: str) -> None:
    stored = OpenVault().seal_text(SEALED_TEXT + text, "here")
    assert OpenVault().unseal_text(stored, "here") == stored
    assert text in stored


@given(CIPHERS, st.lists(LONG, max_size=12))
def test_documents_come_back_byte_for_byte(cipher: Cipher, elements: list[str]) -> None:
    rows = Documents(vault(cipher))
    document = repr({"head": 1, "list": elements}).replace("'", '"').encode()
    whole = carve(document)
    pieces = [rows.new_piece(piece) for piece in whole.newest]
    packing, rest = rows.new_rest("here", whole)
    assert rows.document("here", pieces, packing, rest) == document
    if pieces:
        with pytest.raises(StorageCorrupt):
            rows.document("here", pieces[:-1], packing, rest)
        with pytest.raises(StorageCorrupt):
            rows.document("here", [pieces[-1], *pieces], packing, rest)
