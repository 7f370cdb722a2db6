"""Publishing: committed rows leave their outboxes for Kafka and other outside systems, beside the epochs."""
