"""When schedules tick, and what becomes of the ticks that are due."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice, pairwise, takewhile
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import App, Context
from perdure.adapters.cron import Cron
from perdure.engine.schedules import BACKLOG, LATE_SECONDS, CatchUp, Interval, Rule, plan, tick_id
from perdure.errors import InvalidOptions, InvalidPayload, MissingExtra, UnknownFunction

BERLIN = "Europe/Berlin"
START = 1_700_000_000
EVERY = Interval(10)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def ticks(rule: Rule, after: str, count: int) -> list[str]:
    found = islice(rule.after(at(after)), count)
    return [f"{datetime.fromtimestamp(tick, UTC):%m-%d %H:%M}" for tick in found]


def test_a_line_of_cron_goes_by_the_clocks_of_its_zone() -> None:
    morning = Cron("0  9 * *  mon-fri", BERLIN)
    assert morning.text == "0 9 * * mon-fri (Europe/Berlin)"
    # On a Friday, with the last Sunday of March before the Monday.
    assert ticks(morning, "2026-03-27T08:00", 2) == ["03-30 07:00", "03-31 07:00"]
    assert ticks(Cron("0 9 * * mon-fri"), "2026-03-27T08:00", 1) == ["03-27 09:00"]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        # The clocks go from 02:00 to 03:00 on 29 March, which is 01:00 UTC.
        ("30 2 * * *", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:30"]),
        ("0,30 2 * * *", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:00"]),
        ("*/30 2 * * *", "2026-03-28T12:00", ["03-30 00:00", "03-30 00:30"]),
        ("30 * * * *", "2026-03-29T00:00", ["03-29 00:30", "03-29 01:30"]),
        # And from 03:00 to 02:00 on 25 October, which is 01:00 UTC.
        ("30 2 * * *", "2026-10-24T12:00", ["10-25 00:30", "10-26 01:30"]),
        ("30 2 * * *", "2026-10-25T01:10", ["10-26 01:30", "10-27 01:30"]),
        ("*/30 2 * * *", "2026-10-25T00:10", ["10-25 00:30", "10-25 01:00", "10-25 01:30"]),
        ("30 * * * *", "2026-10-25T00:00", ["10-25 00:30", "10-25 01:30"]),
    ],
)
def test_clocks_that_are_set_leave_one_meaning(line: str, after: str, expected: list[str]) -> None:
    assert ticks(Cron(line, BERLIN), after, len(expected)) == expected


LINES = [
    "30 2 * * *",
    "*/30 2 * * *",
    "17 * * * *",
    "*/5 1-3 25 * sun",
    "0 0 * * *",
    "0,59 1,2 * * *",
]
ZONES = [BERLIN, "UTC", "Australia/Lord_Howe", "Africa/Cairo", "America/New_York"]


@given(
    st.sampled_from(LINES),
    st.sampled_from(ZONES),
    st.integers(at("2026-03-01"), at("2026-11-30")),
    st.integers(0, 3 * 86400),
    st.integers(0, 5),
)
@example("30 2 * * *", BERLIN, at("2026-03-28"), 2 * 86400, 1)
@example("30 2 * * *", BERLIN, at("2026-10-24"), 2 * 86400, 1)
@example("*/30 2 * * *", "Australia/Lord_Howe", 1_554_421_774, 191_534, 2)
@example("0 0 * * *", "Africa/Cairo", at("2026-04-23"), 3 * 86400, 2)
def test_what_is_left_of_ticks_are_the_newest(
    line: str, zone: str, instant: int, seconds: int, count: int
) -> None:
    until = instant + seconds

    def between(rule: Rule, start: int) -> list[int]:
        return [*takewhile(lambda tick: tick <= until, rule.after(start))]

    for rule in (Cron(line, zone), Interval(seconds // 7 + 1)):
        every = between(rule, instant)
        assert every == sorted(set(every))
        start = rule.left(instant, until, count)
        assert start >= instant
        assert between(rule, start) == every[len(every) - min(count, len(every)) :]
        for earlier, later in pairwise(every):
            assert next(rule.after(earlier)) == later


@pytest.mark.parametrize(
    ("catch_up", "ticks", "counted_to"),
    [("skip", [], 4680), ("one", [4680], 4680), ("all", [*range(10, 501, 10)], 500)],
)
def test_what_was_missed_is_made_up_for_by_policy(
    catch_up: CatchUp, ticks: list[int], counted_to: int
) -> None:
    planned = plan(EVERY, catch_up, START, START + 4685)
    assert planned is not None
    assert [tick - START for tick in planned.ticks] == ticks
    assert planned.counted_to == START + counted_to


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_a_tick_that_is_on_time_has_a_run_whatever_the_policy(catch_up: CatchUp) -> None:
    hourly = Interval(3600)
    late = START + 3600 + LATE_SECONDS
    assert plan(hourly, catch_up, START, START + 3599) is None
    on_time = plan(hourly, catch_up, START, late)
    assert on_time is not None
    assert (on_time.ticks, on_time.counted_to) == ([START + 3600], START + 3600)
    missed = plan(hourly, catch_up, START, late + 1)
    assert missed is not None
    assert len(missed.ticks) == (catch_up != "skip")
    assert missed.counted_to == START + 3600


@pytest.mark.parametrize("rule", [EVERY, Cron("* * * * *")])
def test_a_backlog_is_bounded_to_the_newest(rule: Rule) -> None:
    year = START + 365 * 86400
    counted_to, started = START, list[int]()
    dropped = 0
    while planned := plan(rule, "all", counted_to, year):
        started += planned.ticks
        dropped += planned.dropped
        counted_to = planned.counted_to
    assert (len(started), dropped) == (BACKLOG, 1)
    assert started[-1] <= year < next(rule.after(started[-1]))
    assert started == [*islice(rule.after(rule.left(START, year, BACKLOG)), BACKLOG)]


def test_the_id_of_a_run_names_schedule_and_tick() -> None:
    assert tick_id("report", at("2026-11-30T08:00")) == "schedule.report.20261130T080000Z"


async def beat(context: Context) -> None: ...


async def count(context: Context, start: int) -> None: ...


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({}, InvalidOptions, "either cron= or every_seconds="),
        ({"cron": "* * * * *", "every_seconds": 5}, InvalidOptions, "either"),
        ({"every_seconds": 0}, InvalidOptions, "a whole number from 1, not 0"),
        ({"every_seconds": 2.5}, InvalidOptions, "a whole number from 1, not 2.5"),
        ({"every_seconds": 5, "timezone": BERLIN}, InvalidOptions, "the same in every timezone"),
        ({"every_seconds": 5, "catch_up": "none"}, InvalidOptions, "one of 'skip', 'one', 'all'"),
        ({"every_seconds": 5, "name": "a b"}, InvalidOptions, "not an identifier"),
        ({"every_seconds": 5, "name": "n" * 65}, InvalidOptions, "at most 64"),
        ({"every_seconds": 5, "name": "taken"}, InvalidOptions, "'taken' already"),
        ({"cron": "61 * * * *"}, InvalidOptions, "Bad minute"),
        ({"cron": "0 0 * * * *"}, InvalidOptions, "it has five fields"),
        ({"cron": "0 0 30 2 *"}, InvalidOptions, "'0 0 30 2 \\*' is no cron schedule"),
        ({"cron": "* * * * *", "timezone": "Europe/Perdure"}, InvalidOptions, "no time zone"),
        ({"cron": "* * * * *", "timezone": "../passwd"}, InvalidOptions, "no time zone"),
        ({"cron": "* * * * *", "timezone": ""}, InvalidOptions, "no time zone"),
        ({"every_seconds": 5, "input": 1}, InvalidPayload, "no input"),
        ({"function": count, "every_seconds": 5}, InvalidPayload, "takes an input"),
        ({"function": "nobody", "every_seconds": 5}, UnknownFunction, "'nobody'"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(
    how: dict[str, Any], error: type[Exception], message: str
) -> None:
    app = App("memory:")
    app.run(version=1)(beat)
    app.run(version=1)(count)
    app.schedule(beat, every_seconds=5, name="taken")
    with pytest.raises(error, match=message):
        app.schedule(**{"function": beat, **how})


def test_without_the_extra_only_cron_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.delitem(sys.modules, "perdure.adapters.cron", raising=False)
    app = App("memory:")
    app.run(version=1)(beat)
    app.schedule(beat, every_seconds=5)
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[schedules\]'"):
        app.schedule(beat, cron="* * * * *", name="cron")
