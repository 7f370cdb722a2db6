"""The plans that slots have been given: receipts as they come, and which slots nobody need wait for (PROTOCOL 40).

A slot that one call holds up is left: the others go on and are committed without it, and its receipts are taken when
they come. Before such a task writes anything, it asks under which epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from weir.infra.spark import DRIVER
from weir.pipelines.spark.signs import SIGN_EVERY_S, Asks, Sign
from weir.pipelines.tasks.plan import Receipt, Renewal, TaskPlan
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

LOOK_EVERY_S = 0.05
"""How often it is looked whether anybody still wants to wait."""
FRESH_S = 3 * SIGN_EVERY_S
"""A worker that has given no sign for longer is said to be silent."""
SILENT_S = 2 * SIGN_EVERY_S
"""A worker that is not heard for so long will ask before it writes, for it knows how long it has taken: a call may keep
it from giving signs."""
ATTEMPTS = 3
"""How often a slot gets the same plans before what keeps it from answering is an error."""


class GivenUpError(Exception):
    """Nobody waits any more for what a slot was given."""


class Given:
    """What one slot has been given. The slot's thread says what it hears, the driver's thread reads it."""

    def __init__(self, plans: Sequence[TaskPlan], news: threading.Event) -> None:
        """``news`` is set whenever something has changed that somebody may wait for."""
        self.plans, self._news = plans, news
        self._has_changed = False
        """Whether something has changed since it was last looked at."""
        self._asks = all(plan.asks for plan in plans)
        self.receipts: list[Receipt] = []
        self.sign: tuple[Sign, float] | None = None
        """The newest sign of life, and when it came."""
        self.error: BaseException | None = None
        self.has_ended = False
        self.attempts = 1
        self.taken = 0
        """How many of the receipts were passed on."""
        self.forgotten: set[TaskId] = set()
        """Tasks whose receipts nobody wants any more."""
        self.is_writing = False
        """Whether a task writes under an epoch that it has asked for: no commit may pass that before its receipt."""
        self._is_given_up = False
        self._will_ask = self._asks
        self._asking: tuple[TaskId, Callable[[Renewal | None], None]] | None = None
        self._heard_s = time.monotonic()

    @property
    def may_be_left(self) -> bool:
        """Whether a commit may pass, since whatever it still has to do it asks before it writes."""
        return not self.is_writing and (self._will_ask or time.monotonic() - self._heard_s > SILENT_S)

    @property
    def is_forgotten(self) -> bool:
        """Whether receipts have yet to come, of which nobody wants any."""
        left = self.plans[len(self.receipts) :]
        return bool(left) and all(plan.task in self.forgotten for plan in left)

    def sent(self) -> None:
        """A worker has been given what is not answered, perhaps once more since another one was lost.

        Raises:
            GivenUpError: It is not to be carried out any more.
        """
        if self._is_given_up:
            raise GivenUpError
        self._will_ask, self._asking, self._heard_s = self._asks, None, time.monotonic()

    def heard(self, message: object, reply: Callable[[Renewal | None], None]) -> None:
        """The worker has sent this; ``reply`` answers a question."""
        self._heard_s = time.monotonic()
        if isinstance(message, Sign):
            self.sign = message, self._heard_s
            if message.asks:
                self._will_ask, self.is_writing = True, False
        elif isinstance(message, Asks):
            self._asking = message.task, reply
        else:
            assert isinstance(message, Receipt)
            self.receipts.append(message)
            self._has_changed = True
            if not self.is_writing:  # nobody waits for one receipt of several
                return
            self.is_writing = False
        self._changed()

    def ended(self, error: BaseException | None = None) -> None:
        """Everything is answered, or ``error`` keeps the slot from it."""
        self.error, self.has_ended = None if self._is_given_up else error, True
        self._changed()

    def has_news(self) -> bool:
        """Whether something has changed since the last call, or it has ended. To be asked before anything is read, so
        that what changes meanwhile is news the next time."""
        if not (self._has_changed or self.has_ended):
            return False
        self._has_changed = False
        return True

    def _changed(self) -> None:
        self._has_changed = True
        self._news.set()

    def give_up(self) -> None:
        """Its executor is gone: what is not answered is not to be heard any more, nor may another worker begin it."""
        self._is_given_up, self.is_writing, self._asking = True, False, None
        self.forgotten |= {plan.task for plan in self.plans[len(self.receipts) :]}
        self.ended()

    def answer(self, renewal: Callable[[TaskId], Renewal | None]) -> None:
        """Answer the task that asks, if one does."""
        asking, self._asking = self._asking, None
        if asking is None:
            return
        task, reply = asking
        renewed = None if task in self.forgotten else renewal(task)
        self.is_writing = renewed is not None
        try:
            reply(renewed)
        except OSError:  # the worker is lost; its successor begins anew
            self.is_writing = False

    def sign_at(self, now_s: float) -> Sign | None:
        """How the worker is known to be at work: by its newest sign, or by how long it has been silent."""
        if self.has_ended:
            return None
        if now_s - self._heard_s > FRESH_S:
            at_work = self.plans[min(len(self.receipts), len(self.plans) - 1)].task
            return Sign(task=str(at_work), silent_s=now_s - self._heard_s)
        return self.sign[0] if self.sign is not None and self.sign[1] > now_s - FRESH_S else None

    def take(self) -> list[Receipt]:
        """The receipts that have come since the last call."""
        found = self.receipts[self.taken :]
        self.taken += len(found)
        return [receipt for receipt in found if receipt.task not in self.forgotten]


class PlansUnderWay(ABC):
    """Slots with what they have been given; one is given more only once it has answered everything."""

    def __init__(self, slot_of: Mapping[TaskId, int]) -> None:
        self.slot_of = dict(slot_of)
        self.while_waiting: Callable[[Sequence[Sign]], None] = lambda signs: None
        """Called now and then while answers take long, with what is known of the workers."""
        self.is_patient: Callable[[], bool] = lambda: True
        """Whether to wait for slots that may be left."""
        self.renewal: Callable[[TaskId], Renewal | None] = lambda task: None
        """What to answer a task that asks before it writes."""
        self._given: dict[int, Given] = {}
        self._begun: list[Given] = []
        """What was given and has not been waited for."""
        self._news = threading.Event()
        self._told_s = 0.0

    def begin(self, plans: Sequence[TaskPlan]) -> None:
        """Give ``plans`` to their slots, all of which must be free; the next ``run`` waits for them."""
        shares: dict[int, list[TaskPlan]] = {}
        for plan in plans:
            shares.setdefault(self.slot_of[plan.task], []).append(plan)
        for slot, share in sorted(shares.items()):
            self._given[slot] = Given(share, self._news)
            self._begun.append(self._given[slot])
            self._begin(slot, self._given[slot])

    @property
    def has_begun(self) -> bool:
        """Whether plans were begun that have not been waited for."""
        return bool(self._begun)

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        """Begin ``plans``, and wait for them and all that were begun before, as long as need be.

        Returns the receipts that have come, also those of plans that were left before, in no particular order.

        Raises whatever keeps a slot from answering however often it is asked.
        """
        self.begin(plans)
        awaited, self._begun = self._begun, []
        return self._wait(
            lambda: (
                (left := [given for given in awaited if not given.has_ended])
                and (self.is_patient() or not all(given.may_be_left for given in left))
            )
        )

    def late(self) -> list[Receipt]:
        """The receipts of plans that were left, as far as they have come; raises as ``run``."""
        receipts = self._take()
        self._tell_signs()
        return receipts

    def finish_writing(self) -> list[Receipt]:
        """Wait for the tasks that write under an epoch that they have asked for: their receipts, and those of others
        that have come; raises as ``run``."""
        return self._wait(lambda: any(given.is_writing for given in self._given.values()))

    def is_free(self, task: TaskId) -> bool:
        """Whether the slot of ``task`` has answered everything."""
        return self.slot_of[task] not in self._given

    def lost(self) -> Collection[int]:
        """As ``parts.Slots`` has it."""
        return ()

    def leaving(self) -> Collection[int]:
        """As ``parts.Slots`` has it."""
        return ()

    def is_ready(self, slot: int) -> bool:
        """As ``parts.Slots`` has it."""
        return slot not in self._given or not self._given[slot].is_forgotten

    def forget(self, task: TaskId) -> None:
        """The receipt of ``task`` is not wanted any more, and it must not write."""
        if (given := self._given.get(self.slot_of[task])) is not None:
            given.forgotten.add(task)

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        """As ``parts.Slots`` has it."""
        self.slot_of[task] = slot

    @property
    @abstractmethod
    def count(self) -> int:
        """As ``parts.Slots`` has it."""

    def executor_of(self, slot: int) -> str:
        """As ``parts.Slots`` has it."""
        return DRIVER

    def executors(self) -> Sequence[str]:
        """As ``parts.Slots`` has it."""
        return [DRIVER]

    def rack_of(self, executor: str) -> str | None:
        """As ``parts.Slots`` has it."""
        return None

    def go(self, slot: int, executor: str) -> None:
        """As ``parts.Slots`` has it."""
        raise NotImplementedError

    @abstractmethod
    def _begin(self, slot: int, given: Given) -> None:
        """Have ``slot`` carry out what is not answered yet of what it has been given, and tell ``given``."""

    def _wait(self, goes_on: Callable[[], object]) -> list[Receipt]:
        receipts = list[Receipt]()
        while True:
            self._news.clear()
            receipts += self._take()
            if not goes_on():
                return receipts
            self._news.wait(LOOK_EVERY_S)
            self._tell_signs()

    def _give_up_lost(self) -> None:
        for slot in self.lost():
            if (given := self._given.get(slot)) is not None:
                given.give_up()

    def _take(self) -> list[Receipt]:
        receipts = list[Receipt]()
        self._give_up_lost()
        for slot, given in list(self._given.items()):
            if not given.has_news():
                continue
            given.answer(self.renewal)
            has_ended, error = given.has_ended, given.error
            receipts += given.take()
            if not has_ended:
                continue
            if error is None:
                del self._given[slot]
            elif given.attempts == ATTEMPTS:
                raise error
            else:
                log.warning(
                    "slot %s has lost its work (%s); it gets the same plans again",
                    slot,
                    (str(error).splitlines() or [type(error).__name__])[0],
                )
                given.attempts, given.has_ended, given.error = given.attempts + 1, False, None
                self._begin(slot, given)
        return receipts

    def _tell_signs(self) -> None:
        now_s = time.monotonic()
        if now_s < self._told_s + SIGN_EVERY_S:
            return
        self._told_s = now_s
        if signs := [sign for given in self._given.values() if (sign := given.sign_at(now_s)) is not None]:
            self.while_waiting(signs)
