"""How an edge of the migration says no. Spec: 50 §2.3."""

from __future__ import annotations

from typing import NoReturn, Self

from dsh_codec.errors import MigrationRefusedError

__all__ = ["EdgeRefusalError", "pass_on", "refuse", "refused"]


class EdgeRefusalError(Exception):
    """A rule of an edge that an event breaks. Never leaves the package.

    Attributes:
        rule: Rule of the spec, such as `50 §5.4`.
        member: Place of the offending member in the event, such as `data.reason.kind`; empty
            while it is not known or for the event as a whole.
        message: What is wrong with it.
    """

    def __init__(self, rule: str, member: str, message: str) -> None:
        """Take the attributes."""
        super().__init__(rule, member, message)
        self.rule = rule
        self.member = member
        self.message = message

    def inside(self, name: str | int) -> Self:
        """Return the refusal as seen from the object or array that holds the member."""
        step = f"[{name}]" if isinstance(name, int) else name
        separator = "." if self.member and not self.member.startswith("[") else ""
        return type(self)(self.rule, f"{step}{separator}{self.member}", self.message)


def refuse(rule: str, message: str, member: str = "") -> NoReturn:
    """Refuse the event in work."""
    raise EdgeRefusalError(rule, member, message) from None


def pass_on(refusal: EdgeRefusalError, name: str | int) -> NoReturn:
    """Pass a refusal on from a member to the object or array that holds it."""
    raise refusal.inside(name) from None


def refused(
    refusal: EdgeRefusalError, *, edge: int, kind: object, seq: int | None
) -> MigrationRefusedError:
    """Return the error that a caller of the migration sees.

    Args:
        refusal: What the edge said.
        edge: Generation that the edge starts from.
        kind: Type of the event; anything but a string is left out of the message.
        seq: Seq of the event in the generation that the edge starts from; None at the end.
    """
    where = f"edge v{edge} to v{edge + 1} refuses "
    where += (
        kind[:64] if type(kind) is str else "the log" if seq is None else "an event"
    )
    member = f" {refusal.member}" if refusal.member else ""
    return MigrationRefusedError(
        f"{where}:{member} {refusal.message}",
        None,
        None,
        None,
        seq,
        None,
        refusal.rule,
        edge,
        refusal.member or None,
    )
