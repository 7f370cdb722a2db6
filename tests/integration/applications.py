"""Applications that runs in tests name."""

from __future__ import annotations

from pipelines import Application, StreamsBuilder, String

_builder = StreamsBuilder()
_builder.stream("nowhere", key=String("user"), value=String("page")).to_delta("pages")
reads_nowhere = Application("reads-nowhere", _builder)
