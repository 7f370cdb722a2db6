"""Producers of transfers and visits that go on while brokers die, and know what the broker has acknowledged."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict

from confluent_kafka import KafkaError, Message, Producer

from tests.faults.bank import TRANSFERS, VISITS, Transfer, Truth

ACCOUNTS, PAGES, TELLERS = 200, 50, 30
PAUSE_S = 0.1
FLUSH_LIMIT_S = 180.0
NEVER_GIVE_UP = {"message.timeout.ms": 3_600_000, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
"""A record that may or may not have arrived would leave the truth open; repeats that the broker drops do not."""


class Traffic:
    """As many transfers as visits, between ``start`` and ``stop``, over and over."""

    def __init__(self, client: Mapping[str, str], *, seed: int, per_second: int) -> None:
        """``client`` are the properties of the broker's clients."""
        self.truth, self.lost = Truth(), list[str]()
        self._producer = Producer({**client, **NEVER_GIVE_UP, "reconnect.backoff.max.ms": 500})
        self._rng, self._batch = random.Random(seed), max(1, round(per_second * PAUSE_S))
        self._numbers, self._visits = 0, dict.fromkeys(range(PAGES), 0)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Nothing happens if it goes on already."""
        if self._thread is not None:
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._produce, name="traffic")
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait until everything is acknowledged."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
        until = time.monotonic() + FLUSH_LIMIT_S
        while (left := self._producer.flush(5)) and time.monotonic() < until:
            pass
        assert not left, f"{left} records were not acknowledged within {FLUSH_LIMIT_S:g} s"
        assert not self.lost, self.lost[:5]

    def abandon(self) -> None:
        """End without waiting for acknowledgements."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._producer.purge()

    @property
    def given(self) -> int:
        """The number of the newest transfer that was given to the producer."""
        return self._numbers

    def _produce(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            for _ in range(self._batch):
                self._transfer()
                self._visit()
            self._producer.poll(0)

    def _transfer(self) -> None:
        self._numbers += 1
        source, target = self._rng.sample(range(ACCOUNTS), 2)
        transfer = Transfer(self._numbers, f"account-{source}", f"account-{target}", self._rng.randrange(1, 10_000))

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.lost.append(f"{transfer}: {error}")
            else:
                self.truth.transfers[transfer.number] = transfer

        teller = f"teller-{self._rng.randrange(TELLERS)}"
        self._producer.produce(TRANSFERS, json.dumps(asdict(transfer)), teller, on_delivery=told)

    def _visit(self) -> None:
        place = self._rng.randrange(PAGES)
        self._visits[place] += 1
        page = f"page-{place}"

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.lost.append(f"a visit of {page}: {error}")
            else:
                self.truth.visits[page] += 1

        self._producer.produce(VISITS, json.dumps({"number": self._visits[place]}), page, on_delivery=told)
