"""Creates the table of archived transactions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "angarium_transactions",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("external_id", sa.String(256)),
        sa.Column("pipeline", sa.String(128), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("completed_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_index(
        "angarium_transactions_external", "angarium_transactions", ["owner", "external_id"]
    )
    op.create_index("angarium_transactions_completed", "angarium_transactions", ["completed_ms"])
