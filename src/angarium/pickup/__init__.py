"""The pickup module: a gateway that queues messages for recipients who may be offline."""
