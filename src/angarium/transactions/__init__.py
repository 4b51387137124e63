"""Transactions: pipelines of steps that run on node groups. Redis holds the whole state.

Step functions need only `Outcome` and `Step` from here.
"""

from angarium.transactions.step import Outcome, Step

__all__ = ["Outcome", "Step"]
