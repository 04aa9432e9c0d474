from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from perdure.journal.digest import NEWEST_CUTS, Digester, Digests

PARTS = st.lists(st.binary(max_size=3), max_size=9)


def plain(document: bytes, cuts: Sequence[int]) -> Digests:
    """Digest from the start, each beginning apart."""
    newest = [hashlib.sha256(document[:end]).digest() for end in cuts[-NEWEST_CUTS:]]
    return Digests(hashlib.sha256(document).digest(), tuple(newest))


def cuts_of(parts: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(map(len, parts)))


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), PARTS, st.binary(max_size=2))))
def test_digests_are_those_of_the_bytes_whatever_came_before(
    inputs: list[tuple[str, list[bytes], bytes]],
) -> None:
    digester = Digester()
    for step_id, parts, tail in inputs:
        document, cuts = b"".join(parts) + tail, cuts_of(parts)
        assert digester.digest(step_id, document, cuts) == plain(document, cuts)


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1), st.data())
def test_a_conversation_that_grows_shrinks_and_branches(parts: list[bytes], data: st.DataObject):
    digester = Digester()
    for _ in range(4):
        count = data.draw(st.integers(0, len(parts)))
        said = [*parts[:count], *data.draw(PARTS)]
        document, cuts = b"".join(said) + b"]", cuts_of(said)
        assert digester.digest("model", document, cuts) == plain(document, cuts)


def test_many_conversations_take_turns() -> None:
    digester = Digester()
    for turn, step in itertools.product(range(1, 5), range(20)):
        document, cuts = b"x" * turn * step, tuple(range(0, turn * step, 7))
        assert digester.digest(f"model.{step}", document, cuts) == plain(document, cuts)
    assert len(digester._known) <= 8
