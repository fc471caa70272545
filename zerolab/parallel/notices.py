"""Warnings that point at the user's line, however many of the package's own lie between."""

import sys
import warnings


def warn(message: str) -> None:
    """Warn at the nearest line that is not of this package."""
    package, level, frame = __name__.rpartition(".")[0], 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
