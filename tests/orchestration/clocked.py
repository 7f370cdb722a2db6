"""An application whose processor says when it is called by the wall clock."""

from datetime import timedelta

from weir import Application, Processor, Punctuation, Record, StreamsBuilder, String

TOPIC = "ticks"


class Clocked(Processor[str, str, str, str]):
    """Forwards ``called`` each time that a millisecond has passed."""

    def init(self, context):
        self.context = context
        context.schedule(timedelta(milliseconds=1), Punctuation.WALL_CLOCK_TIME, self.report)

    def process(self, record):
        pass

    def report(self, now):
        self.context.forward(Record("all", "called", now))


builder = StreamsBuilder()
ticks = builder.stream(TOPIC, key=String("user"), value=String("tick"))
ticks.to_delta("all_ticks")
ticks.process(Clocked, name="clocked").to_delta("calls")
app = Application("clocked", builder)
