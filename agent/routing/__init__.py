"""Routing: `Router`, its flow, strategies, and the state that it keeps about targets.

`router` reads settings and composes the flow in `flow` and `hedging`. `state` decides for one request, with `filters`,
`strategies` and `failure_policy`. `health`, `limits`, `budgets`, `timings` and `memory` hold what is kept between
requests. They take the time as an argument, so that simulations run the same code.
"""
