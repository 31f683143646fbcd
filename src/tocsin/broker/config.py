"""Settings of a broker: defaults, a TOML file, the environment, flags; later ones win.

Enters: a file, `TOCSIN_BROKER_…` variables, flags. Leaves: one frozen `Config`. An unknown setting
is an error: a misspelt limit would be a missing limit.

Other variables that begin with `TOCSIN_` never stop a broker: container platforms make such names
(`TOCSIN_PORT` for a service called tocsin, `TOCSIN_BROKER_PORT` for one called tocsin-broker), and
other parts of Tocsin use some. Names without `BROKER_` are still accepted, with a warning.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tocsin.errors import ArgumentError
from tocsin.model import EventType

PREFIX = "TOCSIN_BROKER_"
_OLD_PREFIX = "TOCSIN_"
_NOT_SETTINGS = {"TOCSIN_TOKEN", "TOCSIN_URL", "TOCSIN_CACHE"}
_OF_PLATFORM = re.compile(
    r"(?:^|_)(?:service_host|service_port(?:_\w+)?|port(?:_\d+_(?:tcp|udp|sctp)(?:_\w+)?)?)$"
).search
"""Matches the variables that Kubernetes, like Docker, sets for a service."""
log = logging.getLogger("tocsin.config")


@dataclass(frozen=True)
class Limits:
    """Limits on the requests of clients."""

    max_body: int = 1 << 20
    max_events: int = 10_000
    max_header_bytes: int = 16_384
    max_headers: int = 128
    max_condition: int = 16_384
    max_conjunctions: int = 256
    max_attributes: int = 256
    max_match_share: float = 1.0
    max_unindexed: int = 1_000
    max_subscriptions: int = 100_000
    max_publications: int = 100_000
    max_publication_bytes: int = 256 << 20
    max_connections: int = 5_000
    max_token_connections: int = 2_000
    max_unauthenticated: int = 1_000
    max_unauthenticated_per_address: int = 500
    max_transaction: int = 10_000
    max_transaction_bytes: int = 16 << 20
    max_all_transaction_bytes: int = 256 << 20
    max_subscription_bytes: int = 65_536
    max_durable_bytes: int = 8 << 30
    max_acknowledged: int = 100_000
    max_page_bytes: int = 4 << 20
    requests_per_second: float = 1_000.0
    events_per_second: float = 0.0
    connect_seconds: float = 10.0
    request_seconds: float = 30.0


@dataclass(frozen=True)
class Config:
    """All settings. `http` and `stomp` are HOST:PORT or empty; port 0 takes any that is free."""

    data: Path = Path("tocsin-data")
    http: str = "127.0.0.1:8080"
    stomp: str = "127.0.0.1:61613"
    tls_cert: str = ""
    tls_key: str = ""
    auth: bool | None = None
    insecure: bool = False
    synchronous: str = "full"
    check_seconds: float = 5.0
    batch_events: int = 2_000
    queue_events: int = 20_000
    outbox_messages: int = 20_000
    outbox_bytes: int = 4 << 20
    slow_consumer: str = "drop"
    window: int = 1_000
    max_backlog: int = 100_000
    max_backlog_bytes: int = 1 << 30
    min_free_bytes: int = 128 << 20
    ack_seconds: float = 0.0
    max_deliveries: int = 0
    max_dead: int = 10_000
    max_dead_bytes: int = 64 << 20
    dead_seconds: float = 30 * 86_400.0
    idempotency_seconds: float = 600.0
    idempotency_keys: int = 50_000
    recent_events: int = 1_000
    retain_seconds: float = 0.0
    retain_events: int = 100_000
    retain_bytes: int = 64 << 20
    heart_beat_ms: int = 10_000
    drain_seconds: float = 10.0
    webhook_allow: tuple[str, ...] = ()
    webhook_deny: tuple[str, ...] = ()
    webhook_slots: int = 64
    webhook_owner_slots: int = 16
    webhook_attempts: int = 8
    webhook_seconds: float = 10.0
    webhook_back_off: float = 1.0
    name: str = ""
    links: tuple[str, ...] = ()
    link_token: str = ""
    link_ca: str = ""
    link_cert: str = ""
    link_key: str = ""
    link_grade: str = "lub"
    link_bound: int = 64
    link_pieces: int = 1
    link_levels: int = 0
    link_backlog: int = 1_000_000
    warm: bool = True
    telemetry: bool = False
    log: str = "info"
    log_json: bool = False
    audit: bool = True
    audit_bytes: int = 16 << 20
    audit_files: int = 5
    limits: Limits = field(default_factory=Limits)
    types: Mapping[str, EventType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slow_consumer not in ("drop", "disconnect"):
            raise ArgumentError(f"slow_consumer is drop or disconnect, not {self.slow_consumer!r}")
        if self.synchronous not in ("full", "normal"):
            raise ArgumentError(f"synchronous is full or normal, not {self.synchronous!r}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ArgumentError("tls_cert and tls_key go together")
        for name in ("webhook_allow", "webhook_deny"):
            for network in getattr(self, name):
                try:
                    ipaddress.ip_network(network)
                except ValueError as error:
                    raise ArgumentError(f"{name}: {error}") from None
        for name in ("webhook_slots", "webhook_owner_slots"):
            if not getattr(self, name):
                raise ArgumentError(f"{name} is at least 1")
        if len(self.name) > 100 or not self.name.isprintable():
            raise ArgumentError("a broker's name is a text of at most 100 printable characters")
        if self.link_key and not self.link_cert:
            raise ArgumentError("link_key goes with link_cert")
        if self.is_networked and not self.http:
            raise ArgumentError("a broker with links needs an HTTP listener")
        for listener in (self.http, self.stomp):
            if listener:
                split_address(listener)

    @property
    def needs_tokens(self) -> bool:
        """Whether clients must show a token: by default everywhere but on loopback."""
        return self.auth if self.auth is not None else not self.is_local

    @property
    def is_networked(self) -> bool:
        """Whether the broker is part of a network: it has links, or takes those of others."""
        return bool(self.name or self.links)

    @property
    def is_local(self) -> bool:
        """Whether all listeners are on loopback."""
        hosts = [split_address(listener)[0] for listener in (self.http, self.stomp) if listener]
        return all(is_loopback(host) for host in hosts)

    def check_safety(self) -> None:
        """Refuse to send tokens over the network, or to take events from it, without TLS.

        Nor may anybody beyond this machine come without a token. `insecure` allows all of it.
        """
        if self.insecure:
            return
        for link in self.links if self.link_token else ():
            url = urlsplit(link.partition("=")[2] if "=" in link.partition("/")[0] else link)
            if url.scheme in ("http", "ws") and not is_loopback(url.hostname or ""):
                raise ArgumentError(
                    "link_token would cross the network in the clear: "
                    f"link to https://{url.netloc} (or say insecure)"
                )
        if self.is_local:
            return
        if not self.needs_tokens:
            raise ArgumentError("auth = false is for loopback only (or say insecure)")
        if not self.tls_cert:
            raise ArgumentError(
                "tokens would cross the network in the clear: give tls_cert and tls_key "
                "(or say insecure, where a proxy adds TLS)"
            )


def split_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ArgumentError(f"a listener is HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_config(
    path: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    warn: Callable[[str], object] = log.warning,
) -> Config:
    """Return the settings of a file, changed by the environment and by flags that are not None.

    `warn` gets a text for each variable that looks like a setting and is ignored, or is accepted
    under its old name.
    """
    settings: dict[str, Any] = {}
    if path is not None:
        settings = _read_file(path)
    types = _to_types(settings.pop("types", {}))
    limits = _fill(Limits(), settings.pop("limits", {}), "limits.")
    config = _fill(Config(types=types), settings, "")
    named = _from_environment(environment, warn)
    inner = {k[7:]: v for k, v in named.items() if k.startswith("limits_")}
    outer = {k: v for k, v in named.items() if not k.startswith("limits_")}
    limits = _fill(limits, inner, "limits.")
    config = _fill(config, outer, "")
    config = _fill(config, {k: v for k, v in flags.items() if v is not None}, "")
    whole: Config = replace(config, limits=limits)
    return whole


def _from_environment(
    environment: Mapping[str, str], warn: Callable[[str], object]
) -> dict[str, str]:
    """Return the settings in the environment; those with the whole prefix come last and win."""
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    known = {each.name for each in fields(Config)} - {"limits", "types"}
    known |= {f"limits_{each.name}" for each in fields(Limits)}
    for variable, value in environment.items():
        if variable.startswith(PREFIX):
            name = variable[len(PREFIX) :].lower()
            if name in known or not _OF_PLATFORM(name):
                new[name] = value
        elif variable.startswith(_OLD_PREFIX) and variable not in _NOT_SETTINGS:
            name = variable[len(_OLD_PREFIX) :].lower()
            if name in known:
                old[name] = value
            elif not _OF_PLATFORM(name):
                warn(f"{variable} is no setting of a broker; those begin with {PREFIX}")
    return {**_take_old(old, new, warn), **new}


def _take_old(
    old: Mapping[str, str], new: Mapping[str, str], warn: Callable[[str], object]
) -> dict[str, str]:
    """Return settings under their old names, but for values that are another program's."""
    taken = {}
    for name, value in old.items():
        variable, instead = _OLD_PREFIX + name.upper(), PREFIX + name.upper()
        if name in new:
            continue
        try:
            if name.startswith("limits_"):
                _fill(Limits(), {name[7:]: value}, "limits.")
            else:
                _fill(Config(), {name: value}, "")
        except ArgumentError as error:
            if "go together" not in str(error):  # tls_cert needs tls_key, which may come too
                warn(f"{variable} is not taken as a setting: {error}")
                continue
        warn(f"{variable} is the old name of a setting: call it {instead}")
        taken[name] = value
    return taken


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: {error}") from None


def _fill(settings: Any, values: Mapping[str, object], prefix: str) -> Any:
    known = {each.name: getattr(settings, each.name) for each in fields(settings)}
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known or name in ("limits", "types"):
            raise ArgumentError(f"there is no setting {prefix}{name}")
        changed[name] = _convert(prefix + name, known[name], value)
    return replace(settings, **changed)


def _convert(name: str, default: object, value: object) -> object:
    try:
        if isinstance(default, bool) or (default is None and name == "auth"):
            return _to_bool(value)
        if isinstance(default, Path):
            return Path(str(value))
        if isinstance(default, int) and not isinstance(value, bool):
            number = int(value)  # type: ignore[call-overload]
            if number < 0 or number != float(value):  # type: ignore[arg-type]
                raise ValueError
            return number
        if isinstance(default, float) and not isinstance(value, bool):
            amount = float(value)  # type: ignore[arg-type]
            if not 0 <= amount < float("inf"):
                raise ValueError
            return amount
        if isinstance(default, tuple):
            texts = value.split(",") if isinstance(value, str) else value
            return tuple(str(each).strip() for each in texts if str(each).strip())  # type: ignore[attr-defined]
        if isinstance(default, str) and isinstance(value, str):
            return value
    except (TypeError, ValueError):
        pass
    raise ArgumentError(f"{name}: {value!r} does not fit; the default is {default!r}")


def _to_bool(value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ValueError


def _to_types(tables: object) -> dict[str, EventType]:
    if not isinstance(tables, dict):
        raise ArgumentError("types is a table of tables: [types.Quote]")
    types = {}
    for name, attributes in tables.items():
        if not isinstance(attributes, dict):
            raise ArgumentError(f"types.{name} is a table of names and kinds")
        declared = dict(attributes)
        is_strict = declared.pop("strict") if isinstance(declared.get("strict"), bool) else False
        types[name] = EventType(name, declared, strict=is_strict)
    return types
