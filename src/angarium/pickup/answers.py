"""Where a call's answer goes: to its client at once, or into the answer of its batch."""

from __future__ import annotations

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.jsonrpc import batch_answer, failure_answer, result_answer


class Answer:
    """Of one call; used exactly once. A notification's is dropped."""

    __slots__ = ("_batch", "_client", "_id")

    def __init__(self, client: ClientSocket, call_id: bytes | None, batch: Batch | None) -> None:
        self._client = client
        self._id = call_id
        self._batch = batch

    def result(self, value: bytes) -> None:
        self._send(None if self._id is None else result_answer(self._id, value))

    def failure(self, error: BaseException) -> None:
        self._send(None if self._id is None else failure_answer(self._id, error))

    def _send(self, answer: bytes | None) -> None:
        if self._batch is not None:
            self._batch.add(answer)
        elif answer is not None:
            self._client.send(answer)


class Batch:
    """Answers of one batch, sent as one list when the last is in; none if all were dropped."""

    __slots__ = ("_answers", "_client", "_left")

    def __init__(self, client: ClientSocket, calls: int) -> None:
        self._client = client
        self._left = calls
        self._answers: list[bytes] = []

    def add(self, answer: bytes | None) -> None:
        self._left -= 1
        if answer is not None:
            self._answers.append(answer)
        if self._left == 0 and self._answers:
            self._client.send(batch_answer(self._answers))
