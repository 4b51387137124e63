"""Where a call's answer goes: to its client at once, or into the answer of its batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from angarium.pickup.budget import CALL_BYTES, Requests
from angarium.pickup.client_socket import ClientSocket, Written
from angarium.pickup.jsonrpc import Call, batch_answer, failure_answer, result_answer


class Answer:
    """Of one call; used exactly once. A notification's is dropped."""

    __slots__ = ("_client", "_id", "_requests", "_size", "batch")

    def __init__(
        self, client: ClientSocket, call: Call, batch: Batch | None, requests: Requests
    ) -> None:
        self._client = client
        self._id = call.id
        self._requests = requests
        self._size = len(call.params) + CALL_BYTES
        self.batch = batch
        requests.begin(client, self._size)

    @property
    def wanted(self) -> bool:
        return self._id is not None

    def result(self, value: bytes, written: Written | None = None) -> None:
        """`written` is called when the answer has left this process, or when it never will."""
        self._send(None if self._id is None else result_answer(self._id, value), written)

    def failure(self, error: BaseException) -> None:
        self._send(None if self._id is None else failure_answer(self._id, error), None)

    def _send(self, answer: bytes | None, written: Written | None) -> None:
        self._requests.end(self._client, self._size)
        if self.batch is not None:
            self.batch.add(answer, written)
        elif answer is not None:
            self._client.send(answer, written)


class Batch:
    """Answers of one batch, sent as one list when the last is in; none if all were dropped.

    `steps` are the calls of the batch that take several steps; they run one after the other.
    """

    __slots__ = ("_answers", "_client", "_left", "_written", "held", "steps")

    def __init__(self, client: ClientSocket, calls: int) -> None:
        self._client = client
        self._left = calls
        self._answers: list[bytes] = []
        self._written: list[Written] = []
        self.held = 0
        self.steps: list[Callable[[], Awaitable[None]]] = []

    def has_space(self, size: int) -> bool:
        """Whether so many bytes more may still be answered: nothing leaves before the end."""
        return self.held == 0 or self.held + size <= self._client.budget.bytes_max

    def add(self, answer: bytes | None, written: Written | None = None) -> None:
        self._left -= 1
        if answer is not None:
            self._answers.append(answer)
            self.held += len(answer)
            self._client.budget.charge(len(answer))
        if written is not None:
            self._written.append(written)
        if self._left == 0 and self._answers:
            self._client.send(batch_answer(self._answers), self._all_written)
            self._answers.clear()
            self._client.budget.release(self.held)

    def _all_written(self, ok: bool) -> None:
        for each in self._written:
            each(ok)
