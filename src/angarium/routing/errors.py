"""Errors of the routing module.

InputInvalid
├── EnvelopeInvalid      not a DIDComm envelope, or an envelope without a recipient
└── ItemInvalid          an item of a queue can't be read
NotFound
└── RecipientUnknown     no message for this recipient key has ever arrived
AngariumError
└── HandlerCancelled     a handler raised CancelledError, and nobody had cancelled it
Conflict
└── InstancesFull        no number is left for another instance
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, Conflict, InputInvalid, NotFound


class EnvelopeInvalid(InputInvalid):
    code = "envelope_invalid"


class ItemInvalid(InputInvalid):
    code = "item_invalid"


class HandlerCancelled(AngariumError):
    code = "handler_cancelled"


class RecipientUnknown(NotFound):
    code = "recipient_unknown"


class InstancesFull(Conflict):
    code = "instances_full"
