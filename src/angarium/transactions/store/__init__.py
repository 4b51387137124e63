"""The only place of this module that calls scripts and knows the names of keys."""

from angarium.transactions.store.handout import Due, DueWebhook, HandoutStore, WebhookResult
from angarium.transactions.store.life import Able, Held, TransactionStore
from angarium.transactions.store.pipelines import PipelineStore
from angarium.transactions.store.reading import ReadingStore

__all__ = [
    "Able",
    "Due",
    "DueWebhook",
    "HandoutStore",
    "Held",
    "PipelineStore",
    "ReadingStore",
    "TransactionStore",
    "WebhookResult",
]
