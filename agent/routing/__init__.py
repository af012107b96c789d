"""Who is asked, in what order, and what follows from a failure. Flows and pure state; nothing here does I/O.

`strategies` put targets in order, `filters` leave some out, `rules` say what a failure means, `trip` is one request on
its way. What is remembered from one request to the next is in `health`, `rates`, `budgets` and `timings`: small objects
that are given the time and never ask for it, so that a simulation runs the very same code.
"""
