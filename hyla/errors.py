"""Error messages that name the argument, what was given and what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(argument: str, given: object, allowed: Iterable[str]) -> ValueError:
    """Return the error for an unknown name; it suggests the nearest names.

    >>> print(unknown_name("kind", "hila", ["hyla", "linear", "softmax"]))
    kind: unknown name 'hila'. Did you mean 'hyla'? Allowed: hyla, linear, softmax.
    """
    names = list(allowed)
    lower = {name.lower(): name for name in names}
    typed = "" if str(given).isdecimal() else str(given).lower()  # similar numbers are no typos
    near = [lower[match] for match in get_close_matches(typed, lower, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"{argument}: unknown name {given!r}.{hint} Allowed: {', '.join(names)}.")


def bad_value(argument: str, given: object, expected: str) -> ValueError:
    """Return the error for a value outside its range.

    >>> print(bad_value("eps", 0.0, "a number above 0"))
    eps: expected a number above 0, got 0.0.
    """
    return ValueError(f"{argument}: expected {expected}, got {given}.")
