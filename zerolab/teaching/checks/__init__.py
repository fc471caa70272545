"""Automatic checks of the labs, one module a lab."""
