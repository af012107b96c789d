"""Contestants: one module per library, each run in its own process and environment.

A module has `VERSIONS`, the distributions whose versions are reported, and `contestant(api, base, variant)`, which
returns an object with some of the methods of `tasks.Contestant`, or raises `tasks.Absent` with the reason. It imports
its library inside that function; libraries that are not installed in the development environment are imported by
`import_module`, without types.
"""
