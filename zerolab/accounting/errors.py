"""Wrong input, said in one line: which option, what was given, what is accepted."""

from collections.abc import Collection
from difflib import get_close_matches


class InputError(ValueError):
    """A value that the reader can mend. The command line prints it and exits with 2.

    >>> print(InputError("--ranks", 0, "a whole number from 1 to 256"))
    --ranks: got 0; accepted is a whole number from 1 to 256
    """

    def __init__(self, option: str, given: object, accepted: str) -> None:
        # All three go to `args`, so that the error survives pickling between processes.
        super().__init__(option, given, accepted)
        self.option = option
        self.given = given
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.option}: got {self.given!r}; accepted is {self.accepted}"


def unknown_name(option: str, given: object, names: Collection[str]) -> InputError:
    """The error for a name that is not one of `names`: it lists them, the nearest one first."""
    nearest = get_close_matches(str(given).lower(), names, n=1, cutoff=0.4)
    ordered = [*nearest, *(name for name in names if name not in nearest)]
    return InputError(option, given, f"one of {', '.join(ordered)}")
