"""Events of many customers, delivered to a PostgreSQL table and to a Kafka topic in batches for each customer.

A batch leaves when it has 500 events, or five seconds after its first one; both deliveries are exactly once, and no
event moves between tasks. The topic ``customer-events`` is keyed by customer; ``load_customers`` fills it. ``weir demo
customers`` runs it with a PostgreSQL of its own; to use yours: ``weir run weir.pipelines.examples.customers:app --set
sql_url=postgresql://...``.
"""

from dataclasses import dataclass
from datetime import timedelta

from weir import Application, Json, StreamsBuilder, String


@dataclass(frozen=True)
class Event:
    kind: str
    cents: int


builder = StreamsBuilder()
events = builder.stream("customer-events", key=String("customer"), value=Json(Event))
batches = events.batch(max_records=500, max_wait=timedelta(seconds=5), on_stop="flush", name="open_batches")
batches.to_sql("deliveries", name="deliveries_table")
batches.to("deliveries", name="deliveries_topic")
app = Application("customers", builder)
