"""Contestants: a small module each, run in a process and an environment of its own.

A module has `VERSIONS`, the distributions to tell the versions of, and `contestant(api, base, variant)`, which returns
an object with some of the methods of `tasks.Contestant`, or raises `tasks.Absent` with the reason. It imports its
library inside that function, as late as a program would that knows its vendor; by `import_module`, and without types,
where the library is not installed in the environment that checks this repository.
"""
