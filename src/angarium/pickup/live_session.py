"""One live session that this gateway holds, with the state of its fetch."""

from __future__ import annotations

from dataclasses import dataclass, field

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.model import StoredMessage


@dataclass(slots=True, eq=False)
class LiveSession:
    queue: str
    id: str
    client: ClientSocket
    term: str
    by_did: bool = False  # the client named a recipient and no connection
    restoring: bool = False
    more_waiting: bool = False  # the queue may have more than the current fetch returns
    resend: bool = False  # a reply was lost, so all sent messages have to be sent again
    window_full: bool = False  # it gets nothing before something is acknowledged
    to_notify: list[StoredMessage] = field(default_factory=list)  # in this loop iteration
    # The current fetch
    fetching: bool = False
    fetch_resends: bool = False
    fetch_term: str = ""
    seen_moves: str = ""  # the session has the archived messages up to this count of moves
    sent_during_fetch: list[StoredMessage] = field(default_factory=list)
    removed_during_fetch: set[str] = field(default_factory=set)  # the fetch may return them
