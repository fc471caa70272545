"""Numbers as people write them, and bytes as people read them.

GB is 10^9 bytes and GiB is 2^30 bytes: 7 % apart, and the commonest mistake in memory tables.
"""

import re
from decimal import Decimal

from zerolab.accounting.errors import InputError

MOST_PARAMETERS = 10**15
MOST_RANKS = 10**6

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:e[+-]?\d{1,3})?)([kmbt]?)", re.IGNORECASE)

_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) ?((?:[kmgt]i?)?b)", re.IGNORECASE | re.ASCII)


def parse_count(text: str | int | float, option: str = "--params") -> int:
    """A parameter count as people write it: "7e9", "7B", "350M", "1.5b", "7_000_000".

    Raises InputError for anything that is not a whole number from 1 to 10^15.
    """
    accepted = f"a whole number from 1 to {MOST_PARAMETERS:.0e}, such as 7e9, 7B, 350M or 7_000_000"
    match = _COUNT.fullmatch(str(text).strip())
    if match is None:
        raise InputError(option, text, accepted)
    # Decimal, not float: 0.1B is exactly 100,000,000.
    number = Decimal(match[1].replace("_", "")) * _SUFFIXES[match[2].upper()]
    if not 1 <= number <= MOST_PARAMETERS or number != int(number):
        raise InputError(option, text, accepted)
    return int(number)


def parse_size(text: str, option: str) -> int:
    """Bytes as people write them, always with the unit: "71GB", "66.1 GiB", "81559MiB".

    Raises InputError for anything that is not a size from 1 B to 10^18 B.
    """
    match = _SIZE.fullmatch(text.strip())
    size = Decimal(match[1]) * _UNITS[match[2].lower()] if match else Decimal(0)
    if not 1 <= size <= 10**18:
        raise InputError(option, text, "a size with its unit, such as 71GB, 66.1GiB or 81559MiB")
    return round(size)


def check_whole(option: str, value: object, lowest: int, highest: int) -> int:
    """`value` if it is a whole number in the range, else InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise InputError(option, value, f"a whole number from {lowest} to {highest}")
    return value


def gigabytes(size: int) -> str:
    """Bytes in units of 10^9, e.g. "84.00 GB"."""
    return f"{size / 1e9:,.2f} GB"


def gibibytes(size: int) -> str:
    """Bytes in units of 2^30, e.g. "78.23 GiB"."""
    return f"{size / 2**30:,.2f} GiB"


def decimal_bytes(size: int) -> str:
    """Bytes in the largest decimal unit that leaves at least 1: "512 B", "3.41 MB", "8.40 TB"."""
    if abs(size) < 1000:
        return f"{size} B"
    value, units = size / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    # 999.995 would print as "1000.00".
    while abs(value) >= 999.995 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:,.2f} {unit}"
