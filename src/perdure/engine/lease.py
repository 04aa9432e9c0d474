from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from perdure.clock import Clock
from perdure.engine.store import RunStore
from perdure.engine.workers import WorkerNews
from perdure.errors import LeaseLost, StorageError
from perdure.observe import log

_RENEWALS_A_LEASE: Final = 5
_TRUSTED_SHARE: Final = 0.8
_RETRY_SECONDS: Final = 0.2


class Lease:
    """A worker's timed ownership of its runs, renewed from a thread.

    The thread goes on while the event loop is blocked, and stops with the process, so a renewal
    tells that the process lives and nothing else. Ownership is trusted only for a share of the
    lease counted from before the last confirmed renewal was sent, and at first from `asked_at`,
    before the lease was asked for, on the monotonic clock: a process that was frozen, or cut off
    from its database, stops before anyone else may take its runs.
    """

    def __init__(
        self,
        store: RunStore,
        holder: str,
        seconds: float,
        asked_at: float,
        clock: Clock,
        *,
        heard: Callable[[WorkerNews], None],
        lost: Callable[[], None],
    ) -> None:
        self.holder = holder
        self._store = store
        self._seconds = seconds
        self._clock = clock
        self._heard = heard
        self._lost = lost
        self._trusted_until = asked_at + seconds * _TRUSTED_SHARE
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="perdure-lease", daemon=True)
        self._thread.start()

    def check(self, run_id: str) -> None:
        """Raise `LeaseLost` unless this worker's ownership of its runs is still confirmed."""
        if self._clock.monotonic() >= self._trusted_until:
            raise LeaseLost(run_id)

    def stop(self) -> None:
        """End the renewals and wait for the one under way."""
        self._stopped.set()
        self._thread.join()

    def _keep(self) -> None:
        try:
            self._renew()
        finally:
            if not self._stopped.is_set():
                # Whatever ended the renewals, an error nobody foresaw included.
                self._trusted_until = float("-inf")
                self._lost()

    def _renew(self) -> None:
        pause = self._seconds / _RENEWALS_A_LEASE
        complaint = ""
        while not self._stopped.wait(min(pause, self._trusted_seconds())):
            if not self._trusted_seconds():
                return
            sent = self._clock.monotonic()
            try:
                news = self._store.renew_worker(self.holder, self._seconds)
            except LeaseLost:
                return
            except StorageError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.warning("worker %s could not renew its lease: %s", self.holder, error)
                pause = _RETRY_SECONDS
            else:
                self._trusted_until = sent + self._seconds * _TRUSTED_SHARE
                pause, complaint = self._seconds / _RENEWALS_A_LEASE, ""
                self._heard(news)

    def _trusted_seconds(self) -> float:
        return max(0.0, self._trusted_until - self._clock.monotonic())
