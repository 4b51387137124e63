"""The scripts of tokens, called directly: success and each refusal."""

from __future__ import annotations

from angarium.runtime.tokens import REVOKE_TOKEN, STORE_TOKEN, NewToken, OldToken
from tests.kit.sample import sample_runtime


async def test_tokens_are_stored_up_to_their_limit_and_revoked_once(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:

        async def store(sha256: str) -> str:
            return str(await runtime.call(STORE_TOKEN, 0, NewToken(sha256, b"{}", 2)))

        async def revoke(sha256: str) -> str:
            return str(await runtime.call(REVOKE_TOKEN, 0, OldToken(sha256)))

        assert [await store(each) for each in "abc"] == ["stored", "stored", "full"]
        assert [await revoke("a") for _ in range(2)] == ["revoked", "unknown"]
        assert await store("c") == "stored"
