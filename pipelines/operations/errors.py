"""The error of an operation that cannot be carried out, and which errors speak for themselves."""

_OWN_PACKAGES = ("weir", "bench")


class OperationError(Exception):
    """What was asked cannot be done; the text is one sentence that ends with the way out."""


def says_what_to_do(error: BaseException) -> bool:
    """Whether it is an error of Weir's own: its text names the cause and the way out, and nobody needs its stack."""
    return type(error).__module__.partition(".")[0] in _OWN_PACKAGES and bool(str(error).strip())
