"""A bank and a counter of visits: applications whose right results are known without running them.

Each transfer moves an amount from one account to another, so the sum of all balances is always zero, and a balance is
the plain sum of what was moved. Visits of a page are numbered from 1, so that their count is the greatest number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta

from weir import Application, Count, Json, Max, StreamsBuilder, String, Sum

TRANSFERS, VISITS, PARTITIONS = "transfers", "visits", 3


@dataclass(frozen=True)
class Transfer:
    number: int
    source: str
    target: str
    amount: int


@dataclass(frozen=True)
class Posting:
    amount: int


@dataclass(frozen=True)
class Visit:
    number: int


def postings(teller: str | None, transfer: Transfer | None) -> Iterator[tuple[str, Posting]]:
    """What a transfer does to each of its two accounts."""
    if transfer is not None:
        yield transfer.source, Posting(-transfer.amount)
        yield transfer.target, Posting(transfer.amount)


def build() -> Application:
    builder = StreamsBuilder()
    transfers = builder.stream(TRANSFERS, key=String("teller"), value=Json(Transfer))
    transfers.to_delta("journal")
    (
        transfers.flat_map(postings)
        .group_by_key()
        .agg("balances", balance=Sum("amount"), postings=Count())
        .to_delta("balances")
    )
    visits = builder.stream(VISITS, key=String("page"), value=Json(Visit))
    visits.group_by_key().agg("visits", visits=Count(), newest=Max("number")).to_delta("counters")
    return Application("bank", builder, commit_interval=timedelta(milliseconds=500))


app = build()


@dataclass
class Truth:
    """What the outputs have to say about the transfers and visits that the broker has acknowledged."""

    transfers: dict[int, Transfer] = field(default_factory=dict)
    """By number."""
    visits: Counter[str] = field(default_factory=Counter)
    """By page."""

    def balances(self) -> dict[str, tuple[int, int]]:
        """The balance of each account and the number of its postings: a plain fold."""
        amounts, counts = Counter[str](), Counter[str]()
        for transfer in self.transfers.values():
            for account, amount in ((transfer.source, -transfer.amount), (transfer.target, transfer.amount)):
                amounts[account] += amount
                counts[account] += 1
        return {account: (amounts[account], count) for account, count in counts.items()}

    def journal(self) -> list[tuple[int, str, str, int]]:
        """Each transfer once, by number."""
        return sorted(tuple(asdict(transfer).values()) for transfer in self.transfers.values())
