"""Every error that a public call may raise.

Only these escape a public call; anything else is a bug. Each class carries its facts as
attributes and a stable ``code`` for programs. Where Python has an exception for the same thing the
class is that too: the name of it stands in brackets. The hierarchy::

    TocsinError
    ├── SubscriptionError            a subscription cannot be accepted
    │   ├── ConditionSyntaxError     not in the language (line, column, caret) [ValueError]
    │   │   └── UnsupportedSyntaxError   it is SQL, but not in our subset; named
    │   ├── KindClashError           a literal does not fit the declared kind [ValueError]
    │   ├── UndeclaredAttributeError a strict event type does not declare it [ValueError]
    │   ├── ComputedValueError       a subject space cannot compute what it is about [ValueError]
    │   ├── TooManyConjunctionsError the normal form would exceed the limit
    │   ├── ConditionCostError       the condition would take too much work (the limit is named)
    │   ├── CapacityError            a matcher or an index cannot number any more
    │   ├── DuplicateSubscriptionError   the id is taken
    │   ├── UnknownSubscriptionError     no subscription has this id [KeyError]
    │   ├── InvalidIdError           an id is neither a string nor a 64-bit integer [ValueError]
    │   ├── ParameterError           parameters missing, unknown or of no kind [ValueError]
    │   └── BadRowsError             a bulk load found bad rows (all of them listed)
    ├── EventError                   an event cannot be accepted (row, attribute) [ValueError]
    ├── UnknownPublicationError      no publication has this key [KeyError]
    ├── FileFormatError              a file is missing, ill-formed or of an unknown format
    ├── StoreError                   a subscription store cannot be written or read
    │   ├── NoStoreError             there is none at this path
    │   ├── DamagedStoreError        a file is missing, cut off, or its checksum is wrong
    │   ├── ChangedStoreError        others changed it while a base was made that does not fit
    │   └── NewerStoreError          it was written by a newer version
    ├── PipelineError                a pipeline cannot start or go on
    │   ├── ConfigError              its configuration is wrong (the key is named)
    │   └── NoJavaError              Spark has no Java runtime to run on
    ├── BrokerError                  a broker cannot do what it is asked
    │   ├── ProtocolError            bytes or messages that the protocol does not allow
    │   ├── NotAllowedError          no token, a wrong one, or one without the right
    │   ├── LimitError               too large, too many, too fast (the limit is named)
    │   ├── IdempotencyError         an idempotency key was used for something else
    │   ├── UnavailableError         the broker is full, stopping, or cannot be reached
    │   │   └── DiskFullError        its disk is nearly full, and nothing more is stored
    │   ├── UnknownOutcomeError      the broker cannot say whether it stored what it was sent
    │   └── RefusedError             a broker answered a client with an error (its code kept)
    ├── InvariantError               an index is inconsistent: a bug, or a damaged file
    ├── MissingExtraError            an optional package is not installed [ImportError]
    ├── UnknownEngineError           no engine has this name [ValueError]
    └── ArgumentError                the arguments of a call are wrong [ValueError]

Two warnings say why something never matches that is no error: `ConditionWarning` for a condition
that no event can satisfy, `SchemaDriftWarning` for events without what conditions ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple


class TocsinError(Exception):
    """Base class of all errors raised by Tocsin."""

    code = "error"


class SubscriptionError(TocsinError):
    """A subscription cannot be accepted."""

    code = "subscription"


class ConditionSyntaxError(SubscriptionError, ValueError):
    """The text of a condition is not in the language."""

    code = "syntax"

    def __init__(self, message: str, text: str, position: int, expected: str | None = None) -> None:
        self.message = message
        self.text = text
        self.position = position
        self.expected = expected
        before = text[:position]
        self.line = before.count("\n") + 1
        self.column = position - (before.rfind("\n") + 1) + 1
        super().__init__(message, text, position, expected)

    def highlight(self) -> str:
        """Return the offending line of the text with a caret under the place."""
        source = self.text.split("\n")[self.line - 1]
        start = max(0, self.column - 61)
        shown = source[start : start + 120].replace("\t", " ")
        lead = "…" if start else ""
        tail = "…" if start + 120 < len(source) else ""
        return f"{lead}{shown}{tail}\n{' ' * (self.column - 1 - start + len(lead))}^"

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        place = f"line {self.line}, column {self.column}"
        return f"{self.message}{expected} ({place})\n{self.highlight()}"


class UnsupportedSyntaxError(ConditionSyntaxError):
    """The text uses SQL that is not in our subset; ``feature`` names it, ``hint`` helps."""

    code = "unsupported"

    def __init__(self, feature: str, text: str, position: int, hint: str | None = None) -> None:
        self.feature = feature
        self.hint = hint
        message = f"{feature} is not in the subscription language"
        super().__init__(f"{message}: {hint}" if hint else message, text, position)

    def __reduce__(self) -> tuple[type, tuple[str, str, int, str | None]]:
        return (type(self), (self.feature, self.text, self.position, self.hint))


class KindClashError(SubscriptionError, ValueError):
    """A predicate's kind does not fit the kind that the event type declares."""

    code = "kind-clash"

    def __init__(self, attribute: str, declared: str, kind: str) -> None:
        self.attribute = attribute
        self.declared = declared
        self.kind = kind
        super().__init__(attribute, declared, kind)

    def __str__(self) -> str:
        hint = (
            " (write TIMESTAMP '…')"
            if (self.declared, self.kind) == ("timestamp", "string")
            else ""
        )
        return f"attribute {self.attribute!r} is declared {self.declared}, not {self.kind}{hint}"


class UndeclaredAttributeError(SubscriptionError, ValueError):
    """A condition names an attribute that a strict event type does not declare.

    ``near`` is the declared name that was probably meant, or None.
    """

    code = "undeclared-attribute"

    def __init__(self, attribute: str, event_type: str, near: str | None = None) -> None:
        self.attribute = attribute
        self.event_type = event_type
        self.near = near
        super().__init__(attribute, event_type, near)

    def __str__(self) -> str:
        hint = f"; did you mean {self.near!r}?" if self.near else ""
        return f"attribute {self.attribute!r} is not declared by {self.event_type}{hint}"


class ComputedValueError(SubscriptionError, ValueError):
    """A subscription of a subject space is about a computed value or the elements of a list."""

    code = "computed-value"

    def __init__(self, value: str) -> None:
        self.value = value
        super().__init__(value)

    def __str__(self) -> str:
        return (
            f"a subject space takes conditions on attributes only, not on {self.value!r}: its "
            "publications may be ranges, of which nothing is computed; publish the value as an "
            "attribute"
        )


class TooManyConjunctionsError(SubscriptionError):
    """The disjunctive normal form of a condition would exceed the limit."""

    code = "too-many-conjunctions"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(limit)

    def __str__(self) -> str:
        return f"the condition's normal form has more than {self.limit} conjunctions"


class ConditionCostError(SubscriptionError):
    """A condition would take too much work; ``limit`` names what is bounded, ``most`` by how much.

    The limits are `steps` (of the normal form), `pattern` (characters of a LIKE pattern), `piece`
    (characters between two `%` of a pattern, where `_` is among them), `copies` (tokens of terms
    that are compared several times), `functions` (functions and operators that an event takes).
    """

    code = "condition-cost"

    _MESSAGES: ClassVar[dict[str, str]] = {
        "steps": "the condition takes more than {:,} steps to bring into normal form; write it "
        "with fewer ORs within ANDs, or as several subscriptions",
        "pattern": "a LIKE pattern has more than {:,} characters; shorten it",
        "copies": "the condition compares long terms with many values, more than {:,} tokens of "
        "them; compare them with constants, or write fewer values",
        "functions": "the condition has more than {:,} functions and operators; write fewer",
        "piece": "a LIKE pattern has more than {:,} characters, with _ among them, between two %; "
        "shorten that piece, or divide it by %",
    }

    def __init__(self, limit: str, most: int) -> None:
        self.limit = limit
        self.most = most
        super().__init__(limit, most)

    def __str__(self) -> str:
        return self._MESSAGES[self.limit].format(self.most)


class CapacityError(SubscriptionError):
    """A matcher or an index cannot number any more subscriptions, conditions or attributes."""

    code = "capacity"


class DuplicateSubscriptionError(SubscriptionError):
    """A subscription with this id exists already."""

    code = "duplicate-id"

    def __init__(self, subscription: str | int) -> None:
        self.subscription = subscription
        super().__init__(subscription)

    def __str__(self) -> str:
        return f"a subscription with id {self.subscription!r} exists already"


class UnknownSubscriptionError(SubscriptionError, KeyError):
    """No subscription has this id.

    ``other`` is the same id as an integer or as a string, where that one is known.
    """

    code = "unknown-id"

    def __init__(self, subscription: str | int, other: str | int | None = None) -> None:
        self.subscription = subscription
        self.other = other
        super().__init__(subscription, *(() if other is None else (other,)))

    def __str__(self) -> str:
        text = f"there is no subscription with id {self.subscription!r}"
        if self.other is None:
            return text
        kind = "a string" if isinstance(self.other, str) else "an integer"
        return f"{text}; there is one with id {self.other!r}, {kind}"


class InvalidIdError(SubscriptionError, ValueError):
    """An id is neither a string nor a 64-bit integer."""

    code = "invalid-id"

    def __init__(self, subscription: object) -> None:
        self.subscription = subscription
        super().__init__(subscription)

    def __str__(self) -> str:
        return f"an id must be a string or a 64-bit integer, not {self.subscription!r}"


class ParameterError(SubscriptionError, ValueError):
    """Parameters and condition do not fit: some are missing, unknown or of no known kind."""

    code = "parameter"

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unknown: Sequence[str] = (),
    ) -> None:
        self.message = message
        self.missing = tuple(missing)
        self.unknown = tuple(unknown)
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_parameter_error, (self.message, self.missing, self.unknown))


def _parameter_error(
    message: str, missing: tuple[str, ...], unknown: tuple[str, ...]
) -> ParameterError:
    return ParameterError(message, missing=missing, unknown=unknown)


class BadRow(NamedTuple):
    """One row that a bulk load could not accept."""

    row: int
    id: str | int | None
    reason: str
    code: str


class BadRowsError(SubscriptionError):
    """A bulk load found bad rows; nothing was loaded."""

    code = "bad-rows"

    def __init__(self, rows: Sequence[BadRow]) -> None:
        self.rows = tuple(rows)
        super().__init__(self.rows)

    def __str__(self) -> str:
        shown = [f"  row {r.row} (id {r.id!r}): {r.reason}" for r in self.rows[:5]]
        if len(self.rows) > 5:
            shown.append(f"  … and {len(self.rows) - 5} more")
        return "\n".join([f"{len(self.rows)} bad row(s); nothing was loaded", *shown])


class EventError(TocsinError, ValueError):
    """An event cannot be accepted; ``row`` and ``attribute`` say where, when known."""

    code = "event"

    def __init__(
        self, message: str, *, attribute: str | None = None, row: int | None = None
    ) -> None:
        self.message = message
        self.attribute = attribute
        self.row = row
        super().__init__(message)

    def __str__(self) -> str:
        place = [f"row {self.row}"] if self.row is not None else []
        if self.attribute is not None:
            place.append(f"attribute {self.attribute!r}")
        return f"{', '.join(place)}: {self.message}" if place else self.message


class UnknownPublicationError(TocsinError, KeyError):
    """No publication has this key."""

    code = "unknown-key"

    def __init__(self, key: str | int) -> None:
        self.key = key
        super().__init__(key)

    def __str__(self) -> str:
        return f"there is no publication with key {self.key!r}"


class FileFormatError(TocsinError):
    """A file is missing, ill-formed or of a format that we do not read."""

    code = "file-format"

    def __init__(self, path: str, message: str, line: int | None = None) -> None:
        self.path = path
        self.message = message
        self.line = line
        super().__init__(path, message, line)

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else self.path
        return f"{where}: {self.message}"


class StoreError(TocsinError):
    """A subscription store cannot be written or read; ``path`` and ``reason`` say where and why."""

    code = "store"

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NoStoreError(StoreError):
    """There is no subscription store at this path."""

    code = "no-store"


class DamagedStoreError(StoreError):
    """A file of a store is missing, cut off or changed."""

    code = "damaged-store"


class ChangedStoreError(StoreError):
    """A store was changed by others in a way that does not go with what was being made of it."""

    code = "changed-store"


class NewerStoreError(StoreError):
    """A store has a format that only newer versions read."""

    code = "newer-store"


class PipelineError(TocsinError):
    """A pipeline cannot start or go on."""

    code = "pipeline"


class ConfigError(PipelineError):
    """A pipeline's configuration is wrong; ``key`` names the place, as in ``source.format``."""

    code = "config"

    def __init__(self, key: str, reason: str, path: str | None = None) -> None:
        self.key = key
        self.reason = reason
        self.path = path
        super().__init__(key, reason, path)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.key, self.reason) if part)


class NoJavaError(PipelineError):
    """Spark needs a Java runtime, and there is none."""

    code = "no-java"


class BrokerError(TocsinError):
    """A broker cannot do what it is asked."""

    code = "broker"


class ProtocolError(BrokerError):
    """Bytes or messages that the protocol does not allow."""

    code = "protocol"


class NotAllowedError(BrokerError):
    """No token was given, a wrong one, or one without the right; ``known`` tells which."""

    code = "not-allowed"

    def __init__(self, message: str, *, known: bool = False) -> None:
        self.message = message
        self.known = known
        super().__init__(message)


class LimitError(BrokerError):
    """Something is too large, too much or too fast; ``limit`` names the setting."""

    code = "limit"

    def __init__(self, message: str, limit: str, retry_after: float | None = None) -> None:
        self.message = message
        self.limit = limit
        self.retry_after = retry_after
        super().__init__(message, limit, retry_after)

    def __str__(self) -> str:
        return f"{self.message} (limit {self.limit})"


class IdempotencyError(BrokerError):
    """An idempotency key was used before, for a publish of something else."""

    code = "idempotency-key-reused"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def __str__(self) -> str:
        return (
            f"the idempotency key {self.key!r} was used for another publish; "
            "take a new key for each"
        )


class UnavailableError(BrokerError):
    """The broker is full, stopping, cannot write, or cannot be reached."""

    code = "unavailable"


class DiskFullError(UnavailableError):
    """The disk of a broker is nearly full: what would have to be stored is refused."""

    code = "disk-full"


class UnknownOutcomeError(BrokerError):
    """A disk failed while something was committed: it may be stored or not.

    Who sends it again without an idempotency key may have it stored twice.
    """

    code = "unknown-outcome"


class RefusedError(BrokerError):
    """A broker answered a client with an error; ``status`` and ``code`` are the broker's."""

    code = "refused"

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.code = code
        self.message = message
        super().__init__(status, code, message)

    def __str__(self) -> str:
        return self.message


class UnknownEngineError(TocsinError, ValueError):
    """No engine has this name."""

    code = "unknown-engine"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        more = "" if len(self.known) > 2 else "; the published ones come with tocsin-lab"
        return f"there is no engine {self.name!r}; choose one of {', '.join(self.known)}{more}"


class InvariantError(TocsinError):
    """An index is inconsistent; `check` found a bug, or memory or a file was damaged."""

    code = "invariant"


class MissingExtraError(TocsinError, ImportError):
    """An optional package is not installed; ``extra`` is the extra of Tocsin that brings it."""

    code = "missing-extra"

    def __init__(self, what: str, package: str, extra: str) -> None:
        self.what = what
        self.package = package
        self.extra = extra
        super().__init__(what, package, extra)

    def __str__(self) -> str:
        return (
            f"{self.what} needs the package {self.package}, which is not installed: "
            f"pip install 'tocsin[{self.extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return (type(self), (self.what, self.package, self.extra))


class ArgumentError(TocsinError, ValueError):
    """The arguments of a call are wrong, alone or together."""

    code = "argument"


class ConditionWarning(UserWarning):
    """A condition can never be true, or hardly says what its writer meant."""


class SchemaDriftWarning(UserWarning):
    """The events lack attributes of subscriptions, or have them with values of another kind."""
