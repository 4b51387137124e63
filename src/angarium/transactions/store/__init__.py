"""The only package of this module that calls scripts and knows key names."""

from angarium.transactions.store.leases import (
    ArchiveBatch,
    DueWebhook,
    TransactionLeases,
    WebhookResult,
)
from angarium.transactions.store.pipelines import PipelineStore
from angarium.transactions.store.queries import TransactionQueries
from angarium.transactions.store.transitions import NodeCapabilities, NodeWork, TransactionStore

__all__ = [
    "ArchiveBatch",
    "DueWebhook",
    "NodeCapabilities",
    "NodeWork",
    "PipelineStore",
    "TransactionLeases",
    "TransactionQueries",
    "TransactionStore",
    "WebhookResult",
]
