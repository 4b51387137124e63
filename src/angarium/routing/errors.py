"""Errors of the routing module.

InputInvalid
├── EnvelopeInvalid      not a DIDComm envelope, or an envelope without a recipient
└── ItemInvalid          an item of a queue can't be read
NotFound
└── RecipientUnknown     nothing is known of this recipient key
AngariumError
└── HandlerCancelled     a handler raised CancelledError, and nobody had cancelled it
Conflict
├── InstanceLive         a live instance is not removed
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


class InstanceLive(Conflict):
    code = "instance_live"


class InstancesFull(Conflict):
    code = "instances_full"
