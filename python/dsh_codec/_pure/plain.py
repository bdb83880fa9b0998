"""Values of subclasses of JSON's types, which the writers take as what they derive from."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from dsh_codec.errors import DshCodecError
from dsh_codec.limits import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

_CONTAINERS: Final = frozenset((dict, list))
_EXACT: Final = frozenset((dict, list, str, int, float, bool, type(None)))

_SCALARS: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}
"""For each type with subclasses, what gives the value without any method of the subclass."""


def takes_subclasses(
    write: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """Decorate what takes a value of the exact types, so that it takes subclasses, too.

    Only what was refused is looked at again: most values are of the exact types.
    """

    @wraps(write)
    def written(value: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return write(value, *args, **kwargs)
        except (TypeError, DshCodecError):
            plainer = plain(value)
            if plainer is value:
                raise
            return write(plainer, *args, **kwargs)

    return written


def is_exact(value: Any) -> bool:
    """Whether a value has no tuple in it, and nothing of a subclass or that is no JSON value."""
    if type(value) not in _EXACT:
        return False
    pending: list[Any] = [value] if type(value) in _CONTAINERS else []
    seen: set[int] = set()  # A value may contain itself.
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        children: Any = item
        if type(item) is dict:
            if set(map(type, item)) - {str}:
                return False
            children = item.values()
        kinds = set(map(type, children))
        if kinds - _EXACT:
            return False
        if not kinds.isdisjoint(_CONTAINERS):
            pending += [child for child in children if type(child) in _CONTAINERS]
    return True


def plain(value: Any, *, keeps_tuples: bool = True) -> Any:
    """Return a copy of a value that consists of the exact types, with lists for tuples.

    Args:
        value: The value.
        keeps_tuples: Whether tuples alone are no reason to copy.

    Returns:
        The value itself if there is no subclass in it, or if it is nested deeper than any writer
        takes it. What is no JSON value is kept as it is.
    """
    result: list[Any] = []
    pending: list[tuple[Iterator[tuple[Any, Any]], Any]] = [
        (iter([(None, value)]), result)
    ]
    is_changed = False
    while pending:
        members, target = pending[-1]
        for key, item in members:
            copied, inner = _copied(item)
            if type(item) is not type(copied):
                is_changed = is_changed or not (keeps_tuples and type(item) is tuple)
            if isinstance(target, list):
                target.append(copied)
            else:
                name = str.__str__(key) if isinstance(key, str) else key
                is_changed = is_changed or type(key) is not type(name)
                target[name] = copied
            if inner is not None:
                if len(pending) > MAX_DEPTH:
                    return value
                pending.append((inner, copied))
                break
        else:
            pending.pop()
    return result[0] if is_changed else value


def _copied(item: Any) -> tuple[Any, Iterator[tuple[Any, Any]] | None]:
    """Return a scalar, or a new container and what has to be put into it."""
    if isinstance(item, dict):
        return {}, iter(dict.items(item))
    if isinstance(item, list):
        return [], ((None, element) for element in list.__iter__(item))
    if isinstance(item, tuple):
        return [], ((None, element) for element in tuple.__iter__(item))
    if type(item) is not bool:
        for kind, value_of in _SCALARS.items():
            if isinstance(item, kind):
                return value_of(item), None
    return item, None
