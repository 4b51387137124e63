"""An index for the expiry of old messages."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_index("pickup_message_received", "pickup_message", ["keyspace", "received_ms"])
