"""The one way in which a server says no."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - an answer, not an error of the program
    """An answer with an error status.

    Args:
        status: of HTTP.
        code: a short name that programs can tell it by.
        message: what was given, what is allowed, what to do.
        retry_after: seconds after which it may be tried again, where that helps.
        close: whether the connection cannot be used again, being in the middle of a request.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message.encode("utf-8", "backslashreplace").decode()  # it may quote half a character
        self.retry_after = retry_after
        self.close = close

    @property
    def headers(self) -> dict[str, str]:
        """Those that go with the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.close:
            headers["Connection"] = "close"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    @property
    def content(self) -> dict[str, dict[str, str]]:
        """What is in its body: the shape of every error."""
        return {"error": {"code": self.code, "message": self.message}}
