"""Settings of the unit tests."""

from hypothesis import settings

# A busy machine is slow, not wrong: examples have no deadline.
settings.register_profile("zerolab", deadline=None)
settings.load_profile("zerolab")
