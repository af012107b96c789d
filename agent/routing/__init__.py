"""Routing: `Router`, its flow, strategies, and the state of its targets.

`router` reads settings and composes the call in `flow`. `state` makes the decisions for one request, with
`request_profile` and `strategies`. `health` and `limits` hold the state of `targets` between requests. They
take the time as an argument, so that simulations run the same code.
"""
