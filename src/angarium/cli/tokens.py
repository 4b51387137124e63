"""`angarium token create|list|revoke`: bearer tokens of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from angarium.cli.output import Json, print_json, print_line, print_table, run

if TYPE_CHECKING:
    from angarium.runtime.tokens import TokenStore

T = TypeVar("T")


def token_commands() -> typer.Typer:
    commands = typer.Typer(help="Bearer tokens of the API.", no_args_is_help=True)
    commands.command("create")(create)
    commands.command("list")(list_tokens)
    commands.command("revoke")(revoke)
    return commands


def create(
    name: Annotated[str, typer.Argument(help="Name of its owner.")],
    scope: Annotated[str, typer.Option("--scope", help="read, write or admin.")] = "read",
    tenant: Annotated[str | None, typer.Option("--tenant", help="Limit it to this tenant.")] = None,
    as_json: Json = False,
) -> int:
    """Create a token. It is shown once; only its hash is stored."""
    token = _run(lambda store: store.create(name, scope, tenant), remember=True)
    if as_json:
        print_json({"name": name, "scope": scope, "tenant": tenant, "token": token})
    else:
        print_line(token)
    return 0


def list_tokens(as_json: Json = False) -> int:
    """List all tokens, without their secrets."""
    found = _run(lambda store: store.listed())
    if as_json:
        print_json([{"id": each.id, "token": each.token} for each in found])
        return 0
    if not found:
        print_line("no tokens; `angarium token create NAME --scope admin` makes one")
        return 0
    rows = [(each.id, each.token.scope, each.token.name, each.token.tenant) for each in found]
    print_table(("id", "scope", "name", "tenant"), rows)
    return 0


def revoke(
    id: Annotated[str, typer.Argument(help="As `token list` shows it.")], as_json: Json = False
) -> int:
    """Revoke a token; every API process refuses it within seconds."""
    _run(lambda store: store.revoke(id))
    if as_json:
        print_json({"revoked": id})
    else:
        print_line(f"revoked {id}")
    return 0


def _run(ask: Callable[[TokenStore], Awaitable[T]], *, remember: bool = False) -> T:
    async def used() -> T:
        from angarium.cli.runtime import open_runtime
        from angarium.runtime.tokens import TokensSeen, TokenStore

        async with open_runtime() as runtime:
            answer = await ask(TokenStore(runtime))
            if remember:
                TokensSeen(runtime, "api").write_file()
            return answer

    return run(used())
