"""Drivers perform the effects of flows.

`sync` uses blocking calls, `asyncio` an event loop, `simulated` virtual time. They know effects and the wire, but
neither each other nor any vendor. State belongs to one run, never to a driver.
"""
