"""Drivers perform what flows ask for: `sync` with blocking calls, `aio` on asyncio, `simulated` in virtual time.

They know effects and the wire, and neither each other nor any vendor. State belongs to one run, never to a driver.
"""
