"""Large payloads of Temporal in a store of blobs: what is kept there, and what comes back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from perdure.blobs import FileBlobs
from perdure.encryption import Keyring
from perdure.errors import StorageCorrupt, StorageError
from perdure.runtimes.temporal import payload_codec, payload_storage
from tests.harness import run

OVER = 4096


def converter(folder: Path, **settings: Any) -> DataConverter:
    storage = payload_storage(FileBlobs(folder, over_bytes=OVER))
    return dataclasses.replace(DataConverter.default, external_storage=storage, **settings)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_large_is_kept_once_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        converting = converter(tmp_path)
        values = ["small", "x" * 2 * OVER, ["y" * OVER]]
        for _ in range(2):
            carried = await converting.encode(values)
            assert [each.ByteSize() < 500 for each in carried] == [True] * 3
            assert await converting.decode(carried) == values
        assert len(files(tmp_path)) == 2

    run(main())


def test_only_more_than_the_limit_is_large(tmp_path: Path) -> None:
    async def main() -> None:
        plain = (await DataConverter.default.encode(["x" * OVER]))[0]
        less = OVER - (plain.ByteSize() - OVER)
        for characters, kept in ((less, 0), (less + 1, 1)):
            await converter(tmp_path).encode(["x" * characters])
            assert len(files(tmp_path)) == kept

    run(main())


def test_what_is_kept_is_encrypted_first(tmp_path: Path) -> None:
    async def main() -> None:
        codec = payload_codec(Keyring(current="a", keys={"a": Keyring.generate_key()}))
        converting = converter(tmp_path, payload_codec=codec)
        carried = await converting.encode(["secret " * OVER])
        (blob,) = files(tmp_path)
        assert b"secret" not in blob.read_bytes() + carried[0].SerializeToString()
        assert await converting.decode(carried) == ["secret " * OVER]

    run(main())


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda blob: blob.unlink(), "is not there"),
        (lambda blob: blob.write_bytes(blob.read_bytes()[:-1]), "was changed"),
    ],
    ids=["missing", "changed"],
)
def test_a_blob_that_is_not_what_was_stored_is_a_failure_for_good(
    tmp_path: Path, happens: Any, said: str
) -> None:
    async def main() -> None:
        carried = await converter(tmp_path).encode(["x" * 2 * OVER])
        (blob,) = files(tmp_path)
        happens(blob)
        with pytest.raises(ApplicationError, match=said) as raised:
            await converter(tmp_path).decode(carried)
        assert (raised.value.type, raised.value.non_retryable) == ("StorageCorrupt", True)
        assert type(raised.value.__cause__) is StorageCorrupt

    run(main())


def test_a_reference_leads_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        (carried,) = await converter(tmp_path / "payloads").encode(["x" * 2 * OVER])
        (blob,) = files(tmp_path)
        outside = b"../../" + b"a" * 58
        carried.data = carried.data.replace((blob.parent.name + blob.name).encode(), outside)
        assert outside in carried.data
        with pytest.raises(ApplicationError, match="names no blob"):
            await converter(tmp_path / "payloads").decode([carried])

    run(main())


def test_a_store_that_cannot_be_asked_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        run(converter(tmp_path / "file").encode(["x" * 2 * OVER]))
