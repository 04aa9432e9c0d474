"""What a conversation of chance comes to depends on its messages and on nothing else."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from perdure.session.codec import Codec, TextCodec, UiMessageCodec
from perdure.session.message import parse_message
from perdure.session.reader import SessionReader
from perdure.session.run_node import RunNode
from perdure.session.tree import Tree
from perdure.session.view import View
from perdure.testing.session_oracle import Recording, read_at, view_document
from tests.conformance.session.conversation import Conversation
from tests.conformance.session.orders import shuffled

SEEDS = range(25)


def recording(seed: int, *, branches: bool = True) -> Recording:
    lines = Conversation(seed, branches=branches).lines
    return Recording(parse_message(line) for line in lines)


def whole(tree: Tree) -> Any:
    """Return all of a tree: what a newcomer sees, and every node."""
    nodes = [
        [node.key, node.parent, node.serial, node.unanswered if isinstance(node, RunNode) else []]
        + [[message.codec_message_id, message.message] for message in node.messages()]
        for node in tree.nodes
    ]
    return json.loads(json.dumps([view_document(View(tree)), nodes]))


def in_order(recorded: Recording, codec: Codec) -> Tree:
    tree = Tree(codec)
    for delivery in recorded.deliveries:
        tree.apply(delivery)
    return tree


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_comes_to_the_same(seed: int) -> None:
    recorded, chance = recording(seed), Random(seed)
    for codec in (UiMessageCodec(), TextCodec()):
        wanted = whole(in_order(recorded, codec))
        for _ in range(4):
            tree = Tree(codec)
            for number, delivery in enumerate(shuffled(recorded.deliveries, chance)):
                tree.apply(delivery)
                # Reading in between folds what is there, and must not change what it comes to.
                if number % 5 == 0:
                    whole(tree)
            assert whole(tree) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_who_joins_anywhere_and_reads_history_later_sees_the_same(seed: int) -> None:
    recorded, chance = recording(seed), Random(seed)
    wanted = whole(in_order(recorded, UiMessageCodec()))
    for _ in range(6):
        joined, page = chance.randint(0, len(recorded.deliveries)), chance.randint(1, 30)
        reader = SessionReader(UiMessageCodec())
        pages = list(recorded.history(joined, page))
        for delivery in recorded.live(joined):
            reader.receive(delivery)
            if pages and chance.random() < 0.3:
                reader.load(pages.pop(0), more=bool(pages))
        for left in pages:
            reader.load(left, more=left is not pages[-1])
        assert whole(reader.tree) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_no_reader_ever_sees_two_attempts_of_one_step(seed: int) -> None:
    recorded, chance = recording(seed), Random(seed)
    for deliveries in (recorded.deliveries, shuffled(recorded.deliveries, chance)):
        tree = Tree(UiMessageCodec())
        started: set[tuple[str, str]] = set()
        for delivery in deliveries:
            tree.apply(delivery)
            if delivery.name == "ai-step-start":
                started.add((delivery.header("run-id"), delivery.header("step-id")))
            for step in started:
                assert len(shown_attempts(tree, *step)) <= 1


def shown_attempts(tree: Tree, run_id: str, step_id: str) -> set[str]:
    run = tree.run(run_id)
    assert run is not None
    shown = {message.codec_message_id for message in run.messages()}
    return {
        output.header("step-start-serial")
        for output in run.log.entries()
        if output.header("step-id") == step_id and output.header("codec-message-id") in shown
    }


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_pages_reveal_from_the_newest_message_on(seed: int, branches: bool) -> None:
    recorded = recording(seed, branches=branches)
    wanted = view_document(read_at(recorded, UiMessageCodec(), joined=None, page=100))["messages"]
    reader = SessionReader(UiMessageCodec())
    pages = list(recorded.history(len(recorded.deliveries), 7))
    shown = 0
    while not reader.complete or reader.view.withheld:
        missing = reader.reveal(3)
        while missing:
            reader.load(pages.pop(0), more=bool(pages))
            missing = reader.reveal(missing)
        found = view_document(reader.view)["messages"]
        # With branches, what is loaded may turn out to belong to one that is not shown.
        if not branches:
            assert len(found) == min(shown + 3, len(wanted))
            assert found == wanted[-len(found) :]
        shown = len(found)
    assert view_document(reader.view)["messages"] == wanted
