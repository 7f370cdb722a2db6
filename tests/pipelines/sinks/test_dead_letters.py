"""``dead_letter_topic``: where it is refused, and that it is a sink like others."""

from __future__ import annotations

import pytest

from weir import Application, Retry, StreamsBuilder, String, TopologyError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, 'since no record becomes a dead letter; write on_error="dead_letter"'),
        ({"on_error": "continue"}, "since no record becomes a dead letter"),
        ({"on_error": "dead_letter", "dead_letter_topic": "orders"}, "is a topic that the program reads"),
        ({"on_error": "dead_letter", "dead_letter_topic": "copies"}, "is also the name of a sink"),
        ({"on_error": "dead_letter", "dead_letter_topic": "a topic"}, "the topic name 'a topic' is invalid"),
    ],
)
def test_a_topic_of_dead_letters_that_makes_no_sense_is_refused(settings, words):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("customer"), value=String("cents")).to("copies")
    with pytest.raises(TopologyError, match=words):
        Application("shop", builder, **{"dead_letter_topic": "dead", **settings})


@pytest.mark.parametrize("decision", ["dead_letter", Retry(then="dead_letter"), lambda record: "dead_letter"])
def test_whatever_may_put_records_aside_may_have_a_topic(decision):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("customer"), value=String("cents")).to("copies")
    plain = Application("shop", builder)
    application = Application("shop", builder, on_processing_error=decision, dead_letter_topic="dead")
    assert [sink.name for sink in application.topology.outside_sinks] == ["copies", "dead"]
    assert application.topology.fingerprint != plain.topology.fingerprint
    assert [sink.name for sink in plain.topology.outside_sinks] == ["copies"]
