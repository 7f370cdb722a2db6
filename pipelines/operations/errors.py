"""The error of an operation that cannot be carried out, and which errors speak for themselves."""

_OWN_PACKAGES = ("weir", "bench")


class OperationError(Exception):
    """What was asked cannot be done; the text is one sentence that ends with the way out."""


class OtherProgramError(OperationError):
    """The newest commit has a task that the application's program does not have."""

    def __init__(self, application: str, task: str) -> None:
        super().__init__(application, task)
        self.application, self.task = application, task

    def __str__(self) -> str:
        return (
            f"the newest commit of {self.application!r} has the task {self.task}, which its program does not have: run "
            "this program with `weir run MODULE:APP`, or put the one that made the commit back"
        )


def says_what_to_do(error: BaseException) -> bool:
    """Whether it is an error of Weir's own: its text names the cause and the way out, and nobody needs its stack."""
    return type(error).__module__.partition(".")[0] in _OWN_PACKAGES and bool(str(error).strip())
