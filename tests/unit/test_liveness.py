from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.errors import StorageReadOnly
from perdure.storage.liveness import Liveness


def die(liveness: Liveness, holder: str) -> None:
    """Free a lock as the kernel does when its process ends: the file stays."""
    os.close(liveness._held.pop(holder))


def test_a_worker_is_dead_when_its_lock_is_free(tmp_path: Path) -> None:
    one, other = Liveness(tmp_path / "workers"), Liveness(tmp_path / "workers")
    one.hold("a")
    assert not one.is_dead("a")
    assert not other.is_dead("a")
    die(one, "a")
    assert other.is_dead("a")
    assert other.is_dead("a"), "looking does not take the lock"
    other.forget("a")
    assert not other.is_dead("a"), "what nobody knows is not known to be dead"


def test_a_released_worker_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    one, other = Liveness(folder), Liveness(folder)
    one.hold("a")
    one.hold("b")
    one.release("a")
    one.release("a")
    assert [path.name for path in folder.iterdir()] == ["b.lock"]
    other.hold("c")
    one.close()
    assert [path.name for path in folder.iterdir()] == ["c.lock"]
    other.close()
    assert not folder.exists()
    one.hold("d")
    assert not other.is_dead("d")
    one.close()


@pytest.mark.parametrize("holder", ["a/b.1", "..", "../../a", "é" * 200, "x" * 5000])
def test_a_holder_may_have_any_name(tmp_path: Path, holder: str) -> None:
    folder = tmp_path / "workers"
    one, other = Liveness(folder), Liveness(folder)
    one.hold(holder)
    one.hold(f"{holder}2")
    assert len(list(folder.iterdir())) == 2
    die(one, holder)
    assert other.is_dead(holder)
    assert not other.is_dead(f"{holder}2")
    other.forget(holder)
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("no folder")
    with pytest.raises(StorageReadOnly, match=r"a worker keeps a lock file in .*workers"):
        Liveness(tmp_path / "workers").hold("a")
