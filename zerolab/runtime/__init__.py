"""Processes and wires: ranks, collectives, and what is measured of both."""
