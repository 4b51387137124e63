"""Errors of the routing room.

InputInvalid
├── EnvelopeInvalid      not a DIDComm envelope, or one without a recipient
└── ItemInvalid          an item of a queue can't be read
NotFound
└── RecipientUnknown     nobody has ever written to this recipient key
Conflict
└── InstancesFull        no number is left for another instance
"""

from __future__ import annotations

from angarium.core.errors import Conflict, InputInvalid, NotFound


class EnvelopeInvalid(InputInvalid):
    code = "envelope_invalid"


class ItemInvalid(InputInvalid):
    code = "item_invalid"


class RecipientUnknown(NotFound):
    code = "recipient_unknown"


class InstancesFull(Conflict):
    code = "instances_full"
