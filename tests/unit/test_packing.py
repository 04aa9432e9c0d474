from __future__ import annotations

import pytest

from perdure.errors import StorageCorrupt
from perdure.storage.pieces import PLAIN, pack, unpack


@pytest.mark.parametrize("size", [300, 20_000])
def test_packed_bytes_that_were_cut_short_or_go_on_are_refused(size: int) -> None:
    data = b'{"role":"user","content":"' + b"and so on " * (size // 10)
    packing, packed = pack(data)
    assert packing != PLAIN
    assert unpack(packing, packed) == data
    for damaged in (packed[:-1], packed[:-8], packed + b"x", packed[:20] + b"??" + packed[22:]):
        with pytest.raises(StorageCorrupt, match="restore it from a backup"):
            unpack(packing, damaged)


def test_what_packing_would_not_make_smaller_is_kept_as_it_is() -> None:
    for data in (b"", b"short", bytes(range(256)) * 2):
        packing, kept = pack(data)
        assert unpack(packing, kept) == data
        assert len(kept) <= len(data)
