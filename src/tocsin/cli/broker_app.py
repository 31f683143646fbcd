"""Commands around a broker, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Url = Annotated[str, typer.Option(envvar="TOCSIN_URL", help="The broker.")]
Token = Annotated[str | None, typer.Option(envvar="TOCSIN_TOKEN", help="What the broker asks for.")]
Type = Annotated[str | None, typer.Option(help="The event type.")]
Data = Annotated[Path, typer.Option(help="The folder of the broker's database.")]
_HERE = "http://127.0.0.1:8080"

token_app = typer.Typer(
    name="token", help="Make, list and revoke a broker's tokens.", no_args_is_help=True,
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
    link: Annotated[
        list[str], typer.Option(help="A neighbour in the network: its URL. Repeatable.")
    ] = [],  # noqa: B006
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
        str | None, typer.Option(help="The attribute that has the key of each event.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="What stands under the key stays, but for what is named."),
    ] = False,
    retract: Annotated[
        bool, typer.Option("--retract", help="Take back what stands under the key.")
    ] = False,
    ttl: Annotated[float | None, typer.Option(help="Valid for so many seconds.")] = None,
    retain: Annotated[
        float | None, typer.Option(help="Kept so many seconds for subscriptions to come.")
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
    terms = {
        "type": type, "key": key, "key_of": key_of, "merge": merge, "ttl": ttl, "retain": retain,
    }  # fmt: skip
    return run_publish(events, terms, batch, url, token, as_json)


@guarded
def subscribe(
    where: Annotated[
        str | None, typer.Argument(help="A condition; none: a subscription that is there.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The subscription's id.")] = None,
    type: Type = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Keep it, and what it is to get, while away.")
    ] = False,
    transitions: Annotated[
        bool,
        typer.Option("--transitions", help="Tell when publications begin and cease to match."),
    ] = False,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0: never.")] = 0,
    url: Url = _HERE,
    token: Token = None,
) -> int:
    """Print notifications as JSON lines, as they come."""
    from tocsin.cli.broker import run_subscribe

    options = {"type": type, "durable": durable, "transitions": transitions or None}
    return run_subscribe(where, id, options, count, url, token)


@guarded
def top(
    url: Url = _HERE,
    token: Token = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How often to look.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many looks; 0: never.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Show a broker's rates, latencies and queues, live."""
    from tocsin.cli.broker_top import run_top

    return run_top(url, token, seconds, count, as_json)


@token_app.command("create")
@guarded
def token_create(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    data: Data = Path("tocsin-data"),
    publish: Annotated[list[str], typer.Option(help="An event type, or *. Repeatable.")] = [],  # noqa: B006
    subscribe: Annotated[list[str], typer.Option(help="An event type, or *. Repeatable.")] = [],  # noqa: B006
    admin: Annotated[bool, typer.Option("--admin", help="All subscriptions, figures.")] = False,
    days: Annotated[int, typer.Option(min=0, help="Valid so long; 0: for ever.")] = 0,
) -> int:
    """Make a token and print it; it can never be shown again."""
    from tocsin.cli.broker import run_token_create

    return run_token_create(name, data, publish, subscribe, admin, days)


@token_app.command("list")
@guarded
def token_list(data: Data = Path("tocsin-data"), as_json: AsJson = False) -> int:
    """List tokens, without their secrets."""
    from tocsin.cli.broker import run_token_list

    return run_token_list(data, as_json)


@token_app.command("revoke")
@guarded
def token_revoke(
    id: Annotated[str, typer.Argument(help="As `tocsin token list` shows it.")],
    data: Data = Path("tocsin-data"),
) -> int:
    """Revoke a token; a running broker notices within two seconds."""
    from tocsin.cli.broker import run_token_revoke

    return run_token_revoke(id, data)


@guarded
def bench_broker(
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    subscribers: Annotated[int, typer.Option(min=1, help="How many connections listen.")] = 100,
    publishers: Annotated[int, typer.Option(min=1, help="How many connections publish.")] = 4,
    rate: Annotated[int, typer.Option(min=1, help="Events a second, at full load.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")] = 10,
    batch: Annotated[
        int, typer.Option(min=1, help="Events in a request, or between receipts.")
    ] = 50,
    protocol: Annotated[str, typer.Option(help="http or stomp.")] = "http",
    seed: Annotated[int, typer.Option(min=0, help="The seed of the events.")] = 0,
    soak: Annotated[float, typer.Option(min=0, help="Go on at half load for so many seconds.")] = 0,
    beside: Annotated[
        str | None,
        typer.Option(
            help="activemq: STOMP with 5,000 selectors, beside an ActiveMQ that is installed."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Load a broker with events and notifications, at full and at half rate."""
    from tocsin.bench.beside import Beside
    from tocsin.bench.broker import Load
    from tocsin.cli.bench import run_beside, run_broker
    from tocsin.errors import ArgumentError

    if beside is not None:
        if beside != "activemq":
            raise ArgumentError(f"beside is activemq, not {beside!r}")
        return run_beside(
            Beside(publishers=publishers, batch=batch, seconds=seconds, seed=seed), as_json
        )
    load = Load(subscriptions, subscribers, publishers, rate, seconds, batch, protocol, seed, soak)
    return run_broker(load, as_json)


@guarded
def bench_overlay(
    workload: Annotated[str, typer.Option(help="trading or highway.")] = "trading",
    subscribers: Annotated[int, typer.Option(min=1, help="How many subscribers.")] = 1_000,
    edges: Annotated[int, typer.Option(min=1, help="Brokers that they are with.")] = 10,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 2_000,
    updates: Annotated[float, typer.Option(min=0, help="Updates for each event.")] = 0.5,
    rate: Annotated[float, typer.Option(min=1, help="Events a second.")] = 1_000,
    placement: Annotated[
        str, typer.Option(help="home: with the edge of their firm or road; spread: anywhere.")
    ] = "home",
    vary_subscribers: Annotated[str, typer.Option(help="Others to try: N,N,…")] = "",
    vary_updates: Annotated[str, typer.Option(help="Others to try: N,N,… (hundredths).")] = "",
    variants: Annotated[
        str,
        typer.Option(help="Of lub, disjunction, exact, resubscribe, flooding, coded, coded-exact."),
    ] = "lub,disjunction,exact,resubscribe,flooding,coded,coded-exact",
    levels: Annotated[int, typer.Option(min=1, help="Levels where ranges are coded.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The seed.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Load a simulated network of brokers, and the same without its parts."""
    from tocsin.bench.overlay import Setting
    from tocsin.cli.bench import run_overlay, to_numbers

    setting = Setting(workload, subscribers, edges, events, updates, rate, placement, seed, levels)
    others = to_numbers(vary_subscribers, "--vary-subscribers")
    hundredths = to_numbers(vary_updates, "--vary-updates")
    rates = [each / 100 for each in hundredths]
    return run_overlay(setting, variants.split(","), others, rates, repeats, as_json)


def register(app: typer.Typer, bench: typer.Typer, epilog: str) -> None:
    """Add the commands to the command line."""
    for command in (serve, publish, subscribe, top):
        app.command(epilog=epilog)(command)
    bench.command("broker", epilog=epilog)(bench_broker)
    bench.command("overlay", epilog=epilog)(bench_overlay)
    app.add_typer(token_app)
