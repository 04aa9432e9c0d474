"""Which effect a receipt is of, and what is known of one whose process has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.effects.identity import OperationIdentity
from perdure.errors import InvalidInvocation
from tests.harness import run, sql
from tests.receipts import CHARGE, KEY, receipts


@pytest.mark.usefixtures("storage")
def test_nothing_more_comes_from_a_process_that_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with receipts(tmp_path) as it:
            owner = await it.owner()
            await it.storage.claim_effect(it.claim(owner))
            sql(tmp_path, "UPDATE workers SET gone = 2 WHERE holder = ?", owner.holder)
            (doubted,) = await it.storage.doubt_vanished(KEY)
            assert doubted.resend_after == it.clock.now() + 5.0

    run(main())


def test_the_key_is_of_the_identity_and_of_nothing_else() -> None:
    assert CHARGE.operation_key == "op-51e32ce6326c0f6b2565b229a556fa45b204c77a"
    others = [
        ("invoice-17", "charge", "bank", 2),
        ("invoice-17", "charg", "ebank", 1),
        ("invoice-1", "7charge", "bank", 1),
        ('invoice-17","charge', "x", "bank", 1),
        ("invoice-17", 'x","charge', "bank", 1),
    ]
    keys = {OperationIdentity(*parts).operation_key for parts in others}
    assert len(keys | {KEY}) == 6
    assert not {"attempt", "generation", "holder"} & set(OperationIdentity.__struct_fields__)


@pytest.mark.parametrize(
    "parts",
    [
        ("", "a", "b"),
        ("a", "", "b"),
        ("a", "b", ""),
        ("a", 1, "b"),
        ("\ud800", "a", "b"),
        ("a", "b", "c\x00"),
    ],
)
def test_an_identity_is_made_of_texts(parts: Any) -> None:
    with pytest.raises(InvalidInvocation, match="is a text"):
        OperationIdentity(*parts)


@pytest.mark.parametrize("ordinal", [-1, True, 1.0])
def test_an_ordinal_is_a_whole_number(ordinal: Any) -> None:
    with pytest.raises(InvalidInvocation, match="0 or more"):
        OperationIdentity("a", "b", "c", ordinal)
