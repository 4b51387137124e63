"""Angarium inside an ACA-Py agent: its inbound and outbound transports, and its events.

    aca-py start --plugin angarium.routing.acapy --plugin-config plugins.yml \\
        --inbound-transport angarium.routing.acapy redis 0 \\
        --outbound-transport angarium.routing.acapy …

Works with `aries_cloudagent` and `acapy_agent`, can be imported without either, and needs neither
pydantic nor our settings: `hiredis`, `msgspec`, `structlog` and `prometheus-client` are enough.
"""

from angarium.routing.acapy.events import setup
from angarium.routing.acapy.inbound import AngariumInbound
from angarium.routing.acapy.outbound import AngariumOutbound

__all__ = ["AngariumInbound", "AngariumOutbound", "setup"]
