"""The ACA-Py plugin: an inbound and an outbound transport for the agent, and its events in Redis.

    aca-py start --plugin angarium.routing.acapy --plugin-config plugins.yml \\
        --inbound-transport angarium.routing.acapy redis 0 \\
        --outbound-transport angarium.routing.acapy …

The plugin works with `aries_cloudagent` and `acapy_agent` and can be imported without either. It
needs `hiredis`, `msgspec`, `structlog` and `prometheus-client`, but not pydantic.
"""

from angarium.routing.acapy.events import setup
from angarium.routing.acapy.inbound import AngariumInbound
from angarium.routing.acapy.outbound import AngariumOutbound

__all__ = ["AngariumInbound", "AngariumOutbound", "setup"]
