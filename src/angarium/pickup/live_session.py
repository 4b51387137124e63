"""One live session that this gateway holds, with the state of its fetch."""

from __future__ import annotations

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.model import StoredMessage, connection_of


class LiveSession:
    __slots__ = (
        "client",
        "connection",
        "fetch_resends",
        "fetch_term",
        "fetching",
        "id",
        "more_waiting",
        "queue",
        "removed_during_fetch",
        "resend",
        "restoring",
        "seen_moves",
        "sent_during_fetch",
        "term",
        "to_notify",
        "window_full",
    )

    def __init__(self, queue: str, session_id: str, client: ClientSocket, term: str) -> None:
        self.queue = queue
        self.connection = connection_of(queue)
        self.id = session_id
        self.client = client
        self.term = term
        self.restoring = False
        self.more_waiting = False  # the queue may have more than the current fetch returns
        self.resend = False  # a reply was lost, so all sent messages have to be sent again
        self.window_full = False  # it gets nothing before something is acknowledged
        self.to_notify: list[StoredMessage] = []  # leave at the end of this loop iteration
        # The current fetch:
        self.fetching = False
        self.fetch_resends = False
        self.fetch_term = term
        self.seen_moves = ""  # up to this move count the session has the archived messages
        self.sent_during_fetch: list[StoredMessage] = []
        self.removed_during_fetch: set[str] = set()  # the fetch may still return them
