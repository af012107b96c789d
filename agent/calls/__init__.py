"""Flows around one call: the call itself, retries, structured output, credentials.

Each flow turns a `Call` into a `Call`, so they nest. Flows yield effects and perform no I/O.
"""
