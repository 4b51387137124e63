"""Errors of the routing module.

Overloaded
├── RecipientQueueFull   as many messages as may wait for one recipient key wait
└── OutboundQueueFull    as many messages as may wait for the deliverer wait
InputInvalid
├── EnvelopeInvalid      not a DIDComm envelope, or an envelope without a recipient
└── ItemInvalid          an item of a queue can't be read
NotFound
├── InstanceUnknown      no instance has this uid
└── RecipientUnknown     nothing is known of this recipient key
Conflict
├── InstanceLive         a live instance is not removed
├── InstanceSuperseded   another process has started with the uid of this one
└── InstancesFull        no number is left for another instance
"""

from __future__ import annotations

from angarium.runtime.errors import Conflict, InputInvalid, NotFound, Overloaded


class RecipientQueueFull(Overloaded):
    code = "queue_full"


class OutboundQueueFull(Overloaded):
    code = "queue_full"


class EnvelopeInvalid(InputInvalid):
    code = "envelope_invalid"


class ItemInvalid(InputInvalid):
    code = "item_invalid"


class InstanceUnknown(NotFound):
    code = "instance_unknown"


class RecipientUnknown(NotFound):
    code = "recipient_unknown"


class InstanceLive(Conflict):
    code = "instance_live"


class InstanceSuperseded(Conflict):
    code = "instance_superseded"


class InstancesFull(Conflict):
    code = "instances_full"
