"""Words that messages share."""


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
