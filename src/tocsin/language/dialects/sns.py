"""Filter policies of Amazon SNS → expressions.

Enters: a policy, as JSON, or the attributes of a subscription that has one: `FilterPolicy` and
`FilterPolicyScope`. Leaves: an expression on the fields of the message, whether these are its
attributes or its body. A policy is an event pattern (see `eventbridge`) within limits, which are
those of Amazon's page on constraints of filter policies; `docs/dialects-sns.md` says what differs.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from tocsin.language.dialects import eventbridge
from tocsin.language.dialects.eventbridge import Reader as PatternReader
from tocsin.language.dialects.eventbridge import to_expression
from tocsin.language.dialects.json_text import JsonObject, Number
from tocsin.language.dialects.pattern_printer import print_expression
from tocsin.language.expression import Constant, Expression
from tocsin.language.terms import Operand

MAX_KEYS = 5
MAX_COMBINATIONS = 150
MAX_BYTES = 256 * 1024
_SCOPES = ("MessageAttributes", "MessageBody")
_MOST = 10**9
_MOST_DIGITS = 5


def parse(text: str) -> Expression:
    """Return the expression of a filter policy; raise PatternError."""
    return _Reader(text).expression()


def parse_shape(text: str) -> eventbridge.Lifted:
    """Return a policy with its texts and numbers lifted out."""
    return _Reader(text, lift=True).lifted()


class _Reader(PatternReader):
    def expression(self) -> Expression:
        scope = None
        if len(self.text.encode(errors="replace")) > MAX_BYTES:
            self.fail(f"a filter policy has at most {MAX_BYTES // 1024} KB", "$")
        if not isinstance(self.value, JsonObject):
            self.fail("a filter policy is a JSON object", "$")
        members = dict(self.value)
        if isinstance(members.get("FilterPolicy"), JsonObject | str):
            scope = members.get("FilterPolicyScope", _SCOPES[0])
            if self.lift:
                self.fail("the attributes of a subscription are read one by one", "$")
            if scope not in _SCOPES:
                self.fail(f"the scope is {' or '.join(_SCOPES)}", "$.FilterPolicyScope")
            policy = members["FilterPolicy"]
            if isinstance(policy, str):
                return self.within(policy, str(scope))
            self.value = policy
        return self.of_scope(None if scope is None else str(scope))

    def within(self, policy: str, scope: str) -> Expression:
        """Read a policy that is a text within JSON, as the attributes of a subscription have it."""
        inner = _Reader(policy)
        if not isinstance(inner.value, JsonObject):
            self.fail("a filter policy is a JSON object", "$.FilterPolicy")
        return inner.of_scope(scope)

    def of_scope(self, scope: str | None) -> Expression:
        if not isinstance(self.value, JsonObject):
            self.fail("a filter policy is a JSON object", "$.FilterPolicy")
        if not self.value:
            return Constant(True)  # no policy: every message
        branches = self.branches()
        paths = {name for branch in branches for name in branch}
        if scope == _SCOPES[0] and any(f.level > 1 for branch in branches for f in branch.values()):
            self.fail("a policy on message attributes has no nested fields", "$")
        keys = {path.split(".")[0] for path in paths} if scope != _SCOPES[0] else paths
        if len(keys) > MAX_KEYS:
            self.fail(f"a filter policy has at most {MAX_KEYS} keys, not {len(keys)}", "$")
        combinations = sum(
            math.prod(field.n_values * field.level for field in branch.values())
            for branch in branches
        )
        if combinations > MAX_COMBINATIONS:
            message = f"{combinations} combinations of values, more than {MAX_COMBINATIONS}"
            self.fail(message, "$")
        return to_expression(branches)

    def number(self, number: Number) -> Operand:
        return self.comparable(number, "$")

    def comparable(self, number: Number, place: str) -> Operand:
        problem = problem_of_number(number.text)
        if problem and number.slot is None:
            self.fail(problem, place)
        return super().comparable(number, place)


def problem_of_number(text: str) -> str | None:
    """Return what is wrong with a number of a policy, or None."""
    exact: Any = Decimal(text)
    if abs(exact) > _MOST:
        return f"{text} is not between -{_MOST:,} and {_MOST:,}"
    exponent = exact.normalize().as_tuple().exponent
    if isinstance(exponent, int) and -exponent > _MOST_DIGITS:
        return f"{text} has more than {_MOST_DIGITS} digits after the point"
    return None


__all__ = ["parse", "parse_shape", "print_expression"]
