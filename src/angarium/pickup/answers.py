"""The answer of a call goes to its client at once, or into the answer of its batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from angarium.pickup.budget import CALL_BYTES, UnansweredCalls
from angarium.pickup.client_socket import ClientSocket, Written
from angarium.pickup.jsonrpc import Call, batch_answer, failure_answer, result_answer


class RpcAnswer:
    """Of one call; used exactly once. A notification has no answer, so its result is dropped."""

    __slots__ = ("_client", "_id", "_size", "_unanswered", "batch")

    def __init__(
        self, client: ClientSocket, call: Call, batch: RpcBatch | None, unanswered: UnansweredCalls
    ) -> None:
        self._client = client
        self._id = call.id
        self._unanswered = unanswered
        self._size = len(call.params) + CALL_BYTES
        self.batch = batch
        unanswered.begin(client, self._size)

    @property
    def wanted(self) -> bool:
        return self._id is not None

    def result(self, value: bytes, written: Written | None = None) -> None:
        """`written` learns whether the answer left this process."""
        self._send(None if self._id is None else result_answer(self._id, value), written)

    def failure(self, error: BaseException) -> None:
        self._send(None if self._id is None else failure_answer(self._id, error), None)

    def _send(self, answer: bytes | None, written: Written | None) -> None:
        self._unanswered.end(self._client, self._size)
        if self.batch is not None:
            self.batch.add(answer, written)
        elif answer is not None:
            self._client.send(answer, written)


class RpcBatch:
    """The answers of one batch, sent as one list when the last call is answered.

    A batch of notifications is not answered. `steps` are the calls of the batch that need several
    steps; they run one after the other.
    """

    __slots__ = ("_answers", "_client", "_unanswered", "_written", "answer_bytes", "steps")

    def __init__(self, client: ClientSocket, calls: int) -> None:
        self._client = client
        self._unanswered = calls
        self._answers: list[bytes] = []
        self._written: list[Written] = []
        self.answer_bytes = 0
        self.steps: list[Callable[[], Awaitable[None]]] = []

    def has_space(self, size: int) -> bool:
        """Whether another answer of this size fits: the whole batch stays here until the end."""
        return self.answer_bytes == 0 or self.answer_bytes + size <= self._client.budget.bytes_max

    def add(self, answer: bytes | None, written: Written | None = None) -> None:
        self._unanswered -= 1
        if answer is not None:
            self._answers.append(answer)
            self.answer_bytes += len(answer)
            self._client.budget.charge(len(answer))
        if written is not None:
            self._written.append(written)
        if self._unanswered == 0 and self._answers:
            self._client.send(batch_answer(self._answers), self._all_written)
            self._answers.clear()
            self._client.budget.release(self.answer_bytes)

    def _all_written(self, ok: bool) -> None:
        for each in self._written:
            each(ok)
