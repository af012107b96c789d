"""Flows: what to ask, of whom, and what to do when it fails. They yield effects and perform nothing themselves.

Everything here turns a `Call` into a `Call`, and so nests: one model call, retried, with its output checked.
"""
