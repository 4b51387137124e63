"""The pickup room: a gateway that keeps messages for recipients who may be away."""
