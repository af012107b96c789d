"""CPU affinity: the server has one core, and the contestants share another."""

from __future__ import annotations

import os
import resource


def pin(place: int) -> None:
    """Keep this process to one of the cores that it may use."""
    if not hasattr(os, "sched_setaffinity"):
        return  # only Linux has it; elsewhere the scheduler decides
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[place % len(cores)]})


def allow_many_sockets() -> None:
    """Raise the limit of open sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
