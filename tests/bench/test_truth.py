"""The exact results beside a plain model that goes through the events one by one."""

from __future__ import annotations

import json
from collections import defaultdict

import polars as pl
import pytest

from bench.events import (
    PAGES,
    SMALL_BYTES,
    START_MS,
    click_frame,
    event_frame,
    page_frame,
    user_frame,
)
from bench.truth import closed_by_ms, truth


def windows(events, advance_ms, closed_ms):
    sums = defaultdict(int)
    for event in events:
        start = event["ts"] // advance_ms * advance_ms
        while start + 60_000 > event["ts"]:
            if start + 60_000 <= closed_ms:
                sums[f"{event['user']}@{start}"] += event["amount"]
            start -= advance_ms
    return sums


def sessions(events):
    latest, sums = {}, {}
    for event in events:
        begin, end, total = latest.get(event["user"], (event["ts"], event["ts"], 0))
        if event["ts"] - end > 3_000:
            sums[f"{event['user']}@{begin}@{end}"] = total
            begin, total = event["ts"], 0
        latest[event["user"]] = (begin, event["ts"], total + event["amount"])
    return sums | {f"{user}@{begin}@{end}": total for user, (begin, end, total) in latest.items()}


def texts(events, closed_ms):
    found = {}
    for event in events:
        start = event["ts"] // 15_000 * 15_000
        if start + 15_000 <= closed_ms:
            key = f"{event['user']}@{start}"
            found[key] = f"{found[key]},{event['page']}" if key in found else event["page"]
    return found


def by_key(frame, events, field):
    """The values of a topic that events are joined with."""
    return {key: json.loads(value)[field] for key, value, _ in frame(0, events, 0).iter_rows()}


def joined(events):
    sums, factors = defaultdict(int), by_key(user_frame, 40_000, "factor")
    for event in events:
        sums[event["user"]] += event["amount"] * factors[event["user"]]
    return sums


def joined_with_clicks(events):
    sums, clicks = defaultdict(int), defaultdict(list)
    for user, value, ts in click_frame(0, len(events) // 2, 0).iter_rows():
        clicks[user].append((ts, json.loads(value)["weight"]))
    for event in events:
        for ts, weight in clicks[event["user"]]:
            if -5_000 <= ts - event["ts"] <= 5_000:
                sums[event["user"]] += event["amount"] * weight
    return dict(sums)


def joined_by_page(events):
    prices = by_key(page_frame, PAGES, "price")
    return {event["user"]: event["amount"] * prices[event["page"]] for event in events}


def sliding(events):
    """Each window that ends with an event, or begins after one, unless it is empty."""
    users, sums = defaultdict(list), {}
    for event in events:
        users[event["user"]].append((event["ts"], event["amount"]))
    for user, of_user in users.items():
        for start in {start for ts, _ in of_user for start in (ts - 5_000, ts + 1)}:
            within = [amount for ts, amount in of_user if start <= ts <= start + 5_000]
            if within:
                sums[f"{user}@{start}"] = sum(within)
    return sums


@pytest.fixture(scope="module")
def events():
    """520,000 events of 52 seconds: the window that ends after 40 seconds is the last that is closed."""
    return decoded(event_frame(0, 520_000, SMALL_BYTES))


def decoded(frame):
    return [json.loads(value) for value in frame["value"]]


@pytest.mark.parametrize(
    ("job", "model"),
    [
        ("window_final", lambda events: windows(events, 60_000, START_MS + 41_999)),
        ("hopping_final", lambda events: windows(events, 15_000, START_MS + 41_999)),
        ("session_sum", sessions),
        ("joined_text", lambda events: texts(events, START_MS + 41_999)),
    ],
)
def test_exact_results_are_those_of_a_plain_model(job, model, events):
    assert dict(truth(job, len(events)).select("key", "total").iter_rows()) == model(events)


@pytest.mark.parametrize(("job", "model"), [("sliding_sum", sliding), ("stream_join_sum", joined_with_clicks)])
def test_exact_results_of_events_that_are_near_in_time_are_those_of_a_plain_model(job, model, events):
    few = events[:150_000]
    assert dict(truth(job, len(few)).select("key", "total").iter_rows()) == model(few)


@pytest.mark.parametrize(
    ("job", "keys", "model"),
    [
        ("table_join_sum", 40_000, joined),
        ("foreign_key_join", 40_000, joined_by_page),
        ("distinct_keys", 30_000, lambda events: {event["user"]: event["amount"] for event in events}),
    ],
)
def test_exact_results_over_many_keys_are_those_of_a_plain_model(job, keys, model, monkeypatch):
    monkeypatch.setattr("bench.truth.ROWS", keys)
    events = decoded(event_frame(0, 30_000, SMALL_BYTES, keys))
    assert len({event["user"] for event in events}) == len(events)
    assert dict(truth(job, len(events)).select("key", "total").iter_rows()) == model(events)


def test_of_a_user_with_several_events_the_newest_is_joined_by_foreign_key(monkeypatch):
    monkeypatch.setattr("bench.truth.ROWS", 10_000)
    events = decoded(event_frame(0, 25_000, SMALL_BYTES, 10_000))
    assert dict(truth("foreign_key_join", len(events)).select("key", "total").iter_rows()) == joined_by_page(events)


def test_exact_results_of_sixty_windows_an_event_are_those_of_a_plain_model(events):
    """For a hundredth of the users: the model is slow."""
    few = [event for event in events if event["user"] < "u000500"]
    found = truth("hopping_60_final", len(events)).filter(pl.col("key") < "u000500")
    assert dict(found.select("key", "total").iter_rows()) == windows(few, 1_000, START_MS + 41_999)


def test_a_window_is_closed_ten_seconds_after_its_end():
    """The window that ends at 40 s is closed by the event of 50 s, the 500,001st."""
    assert closed_by_ms(500_000) == START_MS + 39_999
    assert closed_by_ms(500_001) == START_MS + 40_000
    assert (truth("window_final", 500_000).height, truth("window_final", 500_001).height > 0) == (0, True)
