"""Workers that come and go at the same time, in one folder that goes with the last of them."""

from __future__ import annotations

import threading
from pathlib import Path

from perdure.storage.liveness import Liveness


def test_a_folder_that_goes_while_it_is_being_made_is_made_again(tmp_path: Path) -> None:
    one, other = Liveness(tmp_path / "workers"), Liveness(tmp_path / "workers")
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            other.hold("other")
            other.close()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(1000):
            one.hold("one")
            one.close()
    finally:
        done.set()
        thread.join()
