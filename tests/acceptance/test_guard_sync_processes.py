"""Processes without an event loop that fork, are killed, or end without a word."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance import forking
from tests.acceptance.children import note, notes, query, run, running, until
from tests.acceptance.samples import LONG

SCRIPT = """
import os, sys
from perdure import OperationIdentity, ReceiptStore, guard_sync

store = ReceiptStore.open("sqlite:///receipts.db")
for number in (1, 2):
    identity = OperationIdentity(f"invoice-{number}", "charge", "bank")
    print(guard_sync(store, identity, lambda identity: os.getpid() == parent), flush=True)
    if number == 1 and FORKS:
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
sys.exit(0)
"""


def outcomes(folder: Path) -> list[tuple[str, str]]:
    return [(line["invoice"], line["outcome"]) for line in notes(folder / "outcomes.log")]


def charges(folder: Path) -> list[str]:
    return [line["invoice"] for line in notes(folder / "charges.log")]


def test_a_forked_child_opens_receipts_and_a_lease_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path, forking.serve, tmp_path) as parent:
        until(lambda: notes(tmp_path / "forked.log"), parent)
        assert outcomes(tmp_path)[1:] == [
            ("before", "before"),
            ("during", "EffectInProgress"),
            ("after", "after"),
        ]
        workers = query(tmp_path / "receipts.db", "SELECT pid FROM workers WHERE gone = 0")
        assert len(workers) == 2
        parent.signal(signal.SIGKILL)
        parent.wait()
        note(tmp_path / "killed.log")
        until(lambda: notes(tmp_path / "ended.log"))
    # The parent's death shows at once: its child holds none of its locks.
    assert outcomes(tmp_path)[4:] == [("during", "EffectAmbiguous")]
    assert charges(tmp_path) == ["before", "during", "after"]


def test_a_forked_child_loses_nothing_when_its_parent_closes(tmp_path: Path) -> None:
    run(tmp_path, forking.part, tmp_path)
    run(tmp_path, forking.pay, tmp_path, None)
    assert outcomes(tmp_path)[-2:] == [("invoice", "invoice")] * 2
    assert charges(tmp_path) == ["before", "first", "invoice"]
    assert query(tmp_path / "receipts.db", "PRAGMA integrity_check") == [("ok",)]


def test_a_child_that_is_forked_in_a_payment_touches_nothing(tmp_path: Path) -> None:
    run(tmp_path, forking.fork_in_a_payment, tmp_path)
    ((line,), paid) = notes(tmp_path / "children.log"), outcomes(tmp_path)
    assert (line["codes"], paid) == ([11, 12], [("during", "during")])
    assert charges(tmp_path) == ["during"]


def test_a_child_that_is_forked_in_an_event_loop_touches_nothing(tmp_path: Path) -> None:
    run(tmp_path, forking.fork_in_a_loop, tmp_path)
    (line,) = notes(tmp_path / "children.log")
    assert (line["codes"], charges(tmp_path)) == ([14], ["parent"])


@pytest.mark.parametrize("forks", [False, True])
def test_a_program_may_exit_without_closing(tmp_path: Path, forks: bool) -> None:
    code = f"import os; parent = os.getpid(); FORKS = {forks}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork", "-c", code],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["True", "False", "False"] if forks else ["True", "True"])


@LONG
def test_a_payer_killed_at_any_point_charges_at_most_once(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    run(reference, forking.list_points, reference)
    crashes = json.loads((reference / "crashes").read_text())
    ends: list[tuple[int, str]] = []
    for number, crash in enumerate(crashes):
        folder = tmp_path / f"at-{number}"
        folder.mkdir()
        with running(folder, forking.pay, folder, crash) as killed:
            killed.die()
        run(folder, forking.pay, folder, None)
        ends.append((len(notes(folder / "charges.log")), outcomes(folder)[-1][1]))
    assert set(ends) == {(1, "invoice"), (0, "EffectAmbiguous"), (1, "EffectAmbiguous")}
