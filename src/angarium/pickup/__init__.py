"""The pickup module: a gateway that keeps messages for recipients who may be away."""
