"""Commands around a broker, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import Dialect

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Url = Annotated[str, typer.Option(envvar="TOCSIN_URL", help="The broker.")]
Token = Annotated[str | None, typer.Option(envvar="TOCSIN_TOKEN", help="A token of the broker.")]
Type = Annotated[str | None, typer.Option(help="The event type.")]
Data = Annotated[Path, typer.Option(help="The folder of the broker's database.")]
_HERE = "http://127.0.0.1:8080"

token_app = typer.Typer(
    name="token", help="Make, list, rotate and revoke a broker's tokens.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip


@guarded
def serve(
    config: Annotated[Path | None, typer.Option(help="Settings in TOML.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder of the database.")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP; empty for none.")] = None,
    stomp: Annotated[str | None, typer.Option(help="HOST:PORT for STOMP; empty for none.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="The certificate, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key, PEM.")] = None,
    auth: Annotated[
        bool | None, typer.Option(help="Ask for tokens; by default everywhere but on loopback.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without TLS or tokens.")
    ] = False,
    warm: Annotated[bool | None, typer.Option(help="Compile kernels before listening.")] = None,
    name: Annotated[str | None, typer.Option(help="The broker's name in a network.")] = None,
    link: Annotated[list[str], typer.Option(help="A peer: its URL, or NAME=URL. Repeatable.")] = [],  # noqa: B006
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> int:
    """Run a broker: HTTP, WebSocket, STOMP, and a console at /."""
    from tocsin.cli.broker import run_serve

    flags = {
        "data": data, "http": http, "stomp": stomp, "tls_cert": tls_cert, "tls_key": tls_key,
        "auth": auth, "insecure": insecure or None, "warm": warm, "log_json": log_json or None,
        "name": name, "links": tuple(link) or None,
    }  # fmt: skip
    return run_serve(config, flags)


@guarded
def publish(
    events: Annotated[
        list[str], typer.Argument(metavar="[EVENT]...", help="JSON objects; none: lines of stdin.")
    ] = [],  # noqa: B006
    type: Type = None,
    key: Annotated[
        str | None, typer.Option(help="Publish it under a key: it stays until it is retracted.")
    ] = None,
    key_of: Annotated[
        str | None, typer.Option(help="The attribute with the key of each event.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Keep attributes of the publication that are not given."),
    ] = False,
    retract: Annotated[
        bool, typer.Option("--retract", help="Retract the publication under the key.")
    ] = False,
    ttl: Annotated[float | None, typer.Option(help="Seconds until it expires.")] = None,
    retain: Annotated[
        float | None, typer.Option(help="Seconds in which new subscriptions still get it.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Lines in a request.")] = 500,
    url: Url = _HERE,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Publish events to a broker."""
    from tocsin.cli.broker import run_publish, run_retract
    from tocsin.errors import ArgumentError

    if retract:
        if key is None or events:
            raise ArgumentError("--retract takes --key and no events")
        return run_retract(key, type, url, token)
    if key is not None and key_of is not None:
        raise ArgumentError("give --key or --key-of")
    terms = {"type": type, "merge": merge, "ttl": ttl, "retain": retain}
    if key_of is not None:
        terms["key_of"] = key_of
    return run_publish(events, key, terms, batch, url, token, as_json)


@guarded
def subscribe(
    where: Annotated[
        str | None, typer.Argument(help="A condition; none: an existing subscription.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The subscription's id.")] = None,
    type: Type = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Keep it and its backlog while disconnected.")
    ] = False,
    notify: Annotated[
        str | None,
        typer.Option(help="Only when publications begin or cease to match: enter, leave or both."),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Notifications to print; 0: no limit.")] = 0,
    dialect: Dialect = "sql",
    url: Url = _HERE,
    token: Token = None,
) -> int:
    """Print notifications as JSON lines, as they come."""
    from tocsin.cli.broker import run_subscribe

    options = {"type": type, "durable": durable, "notify": notify, "dialect": dialect}
    return run_subscribe(where, id, options, count, url, token)


@guarded
def top(
    url: Url = _HERE,
    token: Token = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two reports.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="Reports to print; 0: no limit.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Show a broker's rates, latencies and queues, live."""
    from tocsin.cli.broker_top import run_top

    return run_top(url, token, seconds, count, as_json)


@guarded
def backup(
    file: Annotated[Path, typer.Argument(help="The new file.")],
    data: Data = Path("tocsin-data"),
) -> int:
    """Copy a broker's database to a file and check the copy; the broker may be running."""
    from tocsin.cli.broker import run_backup

    return run_backup(file, data)


@guarded
def restore(
    file: Annotated[
        Path | None,
        typer.Argument(help="A backup; none: the database was put into the folder by other means."),
    ] = None,
    data: Data = Path("tocsin-data"),
) -> int:
    """Put a backup in the place of a broker's database; no broker may run on the folder."""
    from tocsin.cli.broker import run_restore

    return run_restore(file, data)


dead_app = typer.Typer(
    name="dead", help="List, revive and purge the dead letters of a subscription.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
Id = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's id.")]
Letters = Annotated[
    list[int], typer.Argument(metavar="[LETTER]...", help="Their ids; none: all of them.")
]


@dead_app.command("list")
@guarded
def dead_list(id: Id, url: Url = _HERE, token: Token = None) -> int:
    """Print the dead letters of a subscription as JSON lines, oldest first."""
    from tocsin.cli.broker import run_dead_list

    return run_dead_list(id, url, token)


@dead_app.command("revive")
@guarded
def dead_revive(
    id: Id,
    letters: Letters = [],  # noqa: B006
    url: Url = _HERE,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Have dead letters delivered again, under new ids."""
    from tocsin.cli.broker import run_dead

    return run_dead("revive", id, letters, url, token, as_json)


@dead_app.command("purge")
@guarded
def dead_purge(
    id: Id,
    letters: Letters = [],  # noqa: B006
    url: Url = _HERE,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Remove dead letters for good."""
    from tocsin.cli.broker import run_dead

    return run_dead("purge", id, letters, url, token, as_json)


@token_app.command("create")
@guarded
def token_create(
    name: Annotated[str, typer.Argument(help="A name for its owner.")],
    data: Data = Path("tocsin-data"),
    publish: Annotated[list[str], typer.Option(help="An event type, or *. Repeatable.")] = [],  # noqa: B006
    subscribe: Annotated[list[str], typer.Option(help="An event type, or *. Repeatable.")] = [],  # noqa: B006
    admin: Annotated[bool, typer.Option("--admin", help="All subscriptions, figures.")] = False,
    link: Annotated[
        str, typer.Option(metavar="BROKER", help="The broker that may open a link with it.")
    ] = "",
    days: Annotated[int, typer.Option(min=0, help="Days until it expires; 0: never.")] = 0,
) -> int:
    """Make a token and print it; it can never be shown again."""
    from tocsin.cli.broker_tokens import run_token_create

    return run_token_create(name, data, publish, subscribe, admin, link, days)


@token_app.command("list")
@guarded
def token_list(data: Data = Path("tocsin-data"), as_json: AsJson = False) -> int:
    """List tokens, without their secrets, with the number of subscriptions each owns."""
    from tocsin.cli.broker_tokens import run_token_list

    return run_token_list(data, as_json)


@token_app.command("revoke")
@guarded
def token_revoke(
    id: Annotated[str, typer.Argument(help="As `tocsin token list` shows it.")],
    data: Data = Path("tocsin-data"),
    with_subscriptions: Annotated[
        bool, typer.Option("--with-subscriptions", help="Also remove its subscriptions.")
    ] = False,
) -> int:
    """Revoke a token; within two seconds a running broker suspends its subscriptions."""
    from tocsin.cli.broker_tokens import run_token_revoke

    return run_token_revoke(id, data, with_subscriptions)


@token_app.command("rotate")
@guarded
def token_rotate(
    id: Annotated[str, typer.Argument(help="As `tocsin token list` shows it.")],
    data: Data = Path("tocsin-data"),
    days: Annotated[
        int | None, typer.Option(min=0, help="Days until it expires; 0: never.")
    ] = None,
) -> int:
    """Give a token another secret; its rights and subscriptions stay, the old secret ends."""
    from tocsin.cli.broker_tokens import run_token_rotate

    return run_token_rotate(id, data, days)


def register(app: typer.Typer, epilog: str) -> None:
    """Add the commands to the command line."""
    for command in (serve, publish, subscribe, top, backup, restore):
        app.command(epilog=epilog)(command)
    app.add_typer(token_app)
    app.add_typer(dead_app)
