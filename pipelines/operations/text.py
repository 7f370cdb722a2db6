"""Words that messages share."""


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def megabytes(size_bytes: int) -> str:
    """``1.5 MB``, of a million bytes each."""
    return f"{size_bytes / 1e6:,.1f} MB"
