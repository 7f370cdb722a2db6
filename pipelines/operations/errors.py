"""The error of an operation that cannot be carried out."""


class OperationError(Exception):
    """What was asked cannot be done; the text is one sentence that ends with the way out."""
