"""Loops over a CPU's numbers, compiled at start by numba: what torch does in a dozen calls, in one. They know no layers and no requests."""
