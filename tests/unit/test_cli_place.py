from __future__ import annotations

import shlex
from argparse import Namespace

import pytest

from perdure.cli.parser import build_parser
from perdure.cli.place import place_of, placed


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("runs", ""),
        ("runs --url 'sqlite:///my runs.db'", " --url 'sqlite:///my runs.db'"),
        ("show a --app shop:app", " --app shop:app"),
        ("start shop:app double 1", " --app shop:app"),
        ("check shop:app", " --app shop:app"),
        (
            "effects show op-1 --url postgresql://ada:pw@db/x?password=pw --key-file k.json",
            " --url 'postgresql://ada:***@db/x?password=***' --key-file k.json",
        ),
    ],
)
def test_a_command_is_told_its_database_as_it_was_typed(line: str, place: str) -> None:
    options = build_parser().parse_args(shlex.split(line))
    assert place_of(options) == place
    if place:
        again = build_parser().parse_args([*shlex.split(f"effects show op-1{place}")])
        assert place_of(again) == place


def test_a_command_that_needs_no_database_is_told_none() -> None:
    assert place_of(Namespace(command="demo")) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("settle it: perdure effects show op-1", "settle it: perdure effects show op-1 --url X"),
        ("`perdure resume a.b-1` lets it", "`perdure resume a.b-1 --url X` lets it"),
        ("see perdure show a.b. Then", "see perdure show a.b --url X. Then"),
        ("`perdure reencrypt --plaintext` it", "`perdure reencrypt --plaintext --url X` it"),
        ("`perdure reencrypt --rewrite`", "`perdure reencrypt --rewrite`"),
        ("`perdure resume a.b --url X`", "`perdure resume a.b --url X`"),
        (
            "`perdure worker a:b` and `perdure effects`",
            "`perdure worker a:b` and `perdure effects`",
        ),
    ],
)
def test_the_commands_in_a_text_are_told_their_database(text: str, told: str) -> None:
    assert placed(text, " --url X") == told
