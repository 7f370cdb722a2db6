"""The exact results beside a plain model that goes through the events one by one."""

from __future__ import annotations

import json
from collections import defaultdict

import polars as pl
import pytest

from bench.events import KEYS, SMALL_BYTES, START_MS, event_frame, user_frame
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


def joined(events):
    sums, factors = defaultdict(int), {key: json.loads(value) for key, value, _ in user_frame(0, KEYS, 0).iter_rows()}
    for event in events:
        sums[event["user"]] += event["amount"] * factors[event["user"]]["factor"]
    return sums


@pytest.fixture(scope="module")
def events():
    """520,000 events of 52 seconds: the window that ends after 40 seconds is the last that is closed."""
    return [json.loads(value) for value in event_frame(0, 520_000, SMALL_BYTES)["value"]]


@pytest.mark.parametrize(
    ("job", "model"),
    [
        ("window_final", lambda events: windows(events, 60_000, START_MS + 41_999)),
        ("hopping_final", lambda events: windows(events, 15_000, START_MS + 41_999)),
        ("session_sum", sessions),
        ("joined_text", lambda events: texts(events, START_MS + 41_999)),
        ("table_join_sum", joined),
    ],
)
def test_exact_results_are_those_of_a_plain_model(job, model, events):
    assert dict(truth(job, len(events)).select("key", "total").iter_rows()) == model(events)


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
