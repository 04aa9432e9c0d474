from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from perdure.errors import InputDigestMismatch, JournalError, StorageCorrupt
from perdure.journal import Success
from tests.harness import RUN, run, sql, stored

pytestmark = pytest.mark.usefixtures("storage")

DICE = random.Random(7)


def text(size: int) -> bytes:
    """Return letters that hardly shrink when they are packed."""
    return bytes(DICE.choices(range(33, 127), k=size))


def stored_bytes(folder: Path) -> int:
    ((parts,),) = sql(folder, "SELECT COALESCE(sum(length(data)), 0) FROM pieces")
    ((tails,),) = sql(folder, "SELECT sum(length(input_tail)) FROM records")
    return parts + tails


DOCUMENTS = {
    "plain": (b'{"a":1}', ()),
    "one-cut": (b"0123456789", (4,)),
    "all": (b"0123456789", (3, 10)),
    "empty-parts": (b"0123456789", (0, 5)),
    "compressible": (b"a" * 5000, (1000, 3000)),
    "binary": (bytes(range(256)) * 8, (256, 300, 1500)),
}


def test_a_growing_conversation_costs_what_is_new(tmp_path: Path) -> None:
    messages = [text(1000) for _ in range(40)]

    async def main() -> None:
        async with stored(tmp_path) as it:
            other = await it.begin("run-2")
            for fence in (it.fence, other):
                document, cuts = b"", list[int]()
                for number, message in enumerate(messages):
                    document += message
                    cuts.append(len(document))
                    end = b"settings"
                    await it.append("model", number, document + end, tuple(cuts), fence=fence)
                    read = await it.store.read_input(fence.run_id, "model", number)
                    assert read == document + end

    run(main())
    transcript = sum(map(len, messages))
    assert sql(tmp_path, "SELECT count(*) FROM pieces") == [(40,)]
    assert stored_bytes(tmp_path) <= transcript + 80 * len(b"settings")


@pytest.mark.parametrize("steps", [(40,), (1, 40), (20, 31, 40)])
def test_a_conversation_that_grew_by_much_shares_what_was_there(
    tmp_path: Path, steps: tuple[int, ...]
) -> None:
    messages = [text(1000) for _ in range(40)]
    ends = [*itertools.accumulate(map(len, messages))]

    async def main() -> None:
        async with stored(tmp_path) as it:
            for step in steps:
                document = b"".join(messages[:step])
                await it.append("model", step, document, tuple(ends[:step]))
                assert await it.store.read_input(RUN, "model", step) == document

    run(main())
    assert sql(tmp_path, "SELECT count(*) FROM pieces") == [(40,)]


@pytest.mark.parametrize("part", [text(100), b"a" * 1000], ids=["plain", "packed"])
@pytest.mark.parametrize("damage", ["pieces SET data", "records SET input_tail"])
def test_a_damaged_input_is_told_apart_from_a_good_one(
    tmp_path: Path, part: bytes, damage: str
) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await it.append("model", 1, part + part, (len(part),))
            assert await it.store.read_input(RUN, "model", 1) == part + part
            sql(tmp_path, f"UPDATE {damage} = x'00ff'")
            with pytest.raises(InputDigestMismatch, match=f"{RUN}/model/1 is damaged"):
                await it.store.read_input(RUN, "model", 1)

    run(main())


def test_a_damaged_outcome_is_an_error_of_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with stored(tmp_path) as it:
            await it.append("model", 1, b"1", outcome=Success(b'"' + b"a" * 9000 + b'"'))
            sql(tmp_path, "UPDATE records SET payload = x'00ff'")
            with pytest.raises(StorageCorrupt, match="damaged in the database"):
                await it.store.read_payload(RUN, "model", 1)
            with pytest.raises(JournalError, match=f"no operation {RUN}/model/2"):
                await it.store.read_payload(RUN, "model", 2)

    run(main())
