"""The first tables: archived messages, their recipients, and the term of each persister."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "pickup_message",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("keyspace", sa.String(64), nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("received_ms", sa.BigInteger, nullable=False),
        sa.Column("dids", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("pickup_message_queue", "pickup_message", ["keyspace", "queue", "sequence"])
    op.create_table(
        "pickup_recipient",
        sa.Column("message_id", sa.String(64), primary_key=True),
        sa.Column("did", sa.Text, primary_key=True),
        sa.Column("keyspace", sa.String(64), nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "pickup_recipient_did", "pickup_recipient", ["keyspace", "queue", "did", "sequence"]
    )
    op.create_table(
        "pickup_persister",
        sa.Column("keyspace", sa.String(64), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("term", sa.BigInteger, nullable=False),
    )
