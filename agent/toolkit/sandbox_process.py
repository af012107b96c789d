"""Confine a program to a few folders, without network, by means of the Linux kernel.

- Landlock denies access to files outside the given folders.
- A system call filter (seccomp) denies what Landlock does not cover: sockets, keyrings, shared memory, io_uring, and
  changes to modes, owners, times and attributes of files by path.
- Namespaces, where available, make the rest of the disk read-only and hide other processes. Modes and times can then be
  changed, since changes outside the root fail.

The first two are required: if either fails, nothing runs. This process supervises the program and kills its descendants
when it ends, or when standard input closes. It needs no rights and no packages, and imports nothing of this package:
its source runs in an isolated interpreter.
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

# Landlock: include/uapi/linux/landlock.h
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READING = EXECUTE | READ_FILE | READ_DIR

# System call filters: include/uapi/linux/{seccomp,filter,audit}.h
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# fmt: off
REFUSED: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        "sockets": (41,),
        "io_uring": (425, 426, 427),
        "keyrings": (248, 249, 250),
        "shared memory, semaphores, queues": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),
        "watches on files": (254, 301),
        "the kernel itself": (155, 161, 165, 166, 175, 176, 246, 272, 298, 304, 308, 313, 320, 321, 323,
                              428, 429, 430, 431, 432, 433, 442),
    },
    "aarch64": {
        "sockets": (198,),
        "io_uring": (425, 426, 427),
        "keyrings": (217, 218, 219),
        "shared memory, semaphores, queues": (180, 181, 186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196),
        "watches on files": (27, 263),
        "the kernel itself": (39, 40, 41, 51, 97, 104, 105, 106, 241, 265, 268, 273, 280, 282, 294,
                              428, 429, 430, 431, 432, 433, 442),
    },
}
ATTRIBUTES = {  # getxattr, setxattr, listxattr and removexattr by path
    "x86_64": (188, 189, 191, 192, 194, 195, 197, 198, 463, 464, 465, 466),
    "aarch64": (5, 6, 8, 9, 11, 12, 14, 15, 463, 464, 465, 466),
}
METADATA: dict[str, tuple[int, ...]] = {
    "x86_64": (90, 92, 94, 132, 235, 260, 261, 268, 452, 469),
    "aarch64": (53, 54, 452, 469),
}
UTIMENSAT = {"x86_64": 280, "aarch64": 88}
TRUNCATE_CALL = {"x86_64": 76, "aarch64": 45}
KILL = {"x86_64": 62, "aarch64": 129}
# fmt: on

SET_PARENT_DEATH, SET_SECCOMP, DROP_CAPABILITY, SUBREAPER, NO_NEW_PRIVILEGES = 1, 22, 24, 36, 38
NEW_MOUNTS, NEW_USERS, NEW_PROCESSES = 0x00020000, 0x10000000, 0x20000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- a new one is put in its place
MOUNT_SETATTR, CURRENT_FOLDER, READ_ONLY, ALL_BENEATH = 442, -100, 1, 0x8000
CAPSET, CAPSET_VERSION = {"x86_64": 126, "aarch64": 91}, 0x20080522
KEPT_CAPABILITIES = (0, 1, 3, 4)
"""Capabilities kept for root: access to files of other owners, within Landlock."""

libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True)


class CannotConfine(Exception):
    """The program cannot be confined, and is not run."""


def call(what: str, function: Callable[..., int], *arguments: Any) -> int:
    """Call a function of the C library; raise CannotConfine if it fails."""
    result = function(*arguments)
    if result < 0:
        raise CannotConfine(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def syscall(what: str, number: int, *arguments: Any) -> int:
    return call(what, libc.syscall, ctypes.c_long(number), *arguments)


def prctl(what: str, option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    call(what, libc.prctl, ctypes.c_int(option), *padded)


# Support


def landlock_version() -> int:
    """Return the Landlock version; 0 if the kernel has none or it is disabled."""
    version = libc.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(int(version), 0)


def find_missing_feature() -> str | None:
    """Describe why programs cannot be confined; None if they can."""
    if os.uname().machine not in ARCHITECTURES or struct.calcsize("P") != 8:
        return f"that takes {' or '.join(ARCHITECTURES)}, and this is {os.uname().machine}"
    if landlock_version() < 1:
        return "this kernel has no Landlock (it came with Linux 5.13), or it is switched off"
    return None


# Restrictions


def restrict_files(reading: list[str], writing: list[str], devices: list[str], version: int) -> None:
    """Restrict this process and its descendants to these paths."""
    handled = (1 << 13) - 1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        handled |= right if version >= since else 0
    network, scopes = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    attributes = struct.pack("=QQQ", handled, network, scopes)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = syscall("Landlock", CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    changing = handled & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)  # a device node would give access to the disk
    for paths, rights in ((reading, READING), (writing, changing), (devices, READ_FILE | WRITE_FILE)):
        for path in paths:
            allow(ruleset, path, rights & handled)
    syscall("Landlock", RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= OF_FILES
        rule = struct.pack("=Qi", rights, opened)
        syscall("Landlock", ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(opened)


def filter_program(machine: str, *, metadata: bool, signals: bool, truncation: bool) -> bytes:
    """Build the seccomp filter. `metadata` allows changes of modes and times; `signals` allows kill(-1)."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    def fail(error: int) -> bytes:
        return step(RETURN, FAIL | error)

    steps = [step(LOAD, 4), step(EQUAL, ARCHITECTURES[machine], 1, 0), fail(errno.ENOSYS), step(LOAD, 0)]
    if machine == "x86_64":  # the x32 variants of the same calls
        steps += [step(AT_LEAST, 0x40000000, 0, 1), fail(errno.ENOSYS)]
    refused = [number for numbers in REFUSED[machine].values() for number in numbers]
    refused += [] if metadata else METADATA[machine]
    refused += [] if truncation else [TRUNCATE_CALL[machine]]
    for number in refused:
        # Programs probe for io_uring, and fall back on ENOSYS.
        error = errno.ENOSYS if number in (425, 426, 427) else errno.EPERM
        steps += [step(EQUAL, number, 0, 1), fail(error)]
    for number in ATTRIBUTES[machine]:
        steps += [step(EQUAL, number, 0, 1), fail(errno.ENOTSUP)]
    if not metadata:  # utimensat only on an open file, without a path
        steps += [step(EQUAL, UTIMENSAT[machine], 0, 6), step(LOAD, 24), step(EQUAL, 0, 0, 3), step(LOAD, 28)]
        steps += [step(EQUAL, 0, 0, 1), step(RETURN, ALLOW), fail(errno.EPERM)]
    if not signals:  # kill(-1), a signal to every process of this user
        steps += [step(EQUAL, KILL[machine], 0, 3), step(LOAD, 16), step(EQUAL, 0xFFFFFFFF, 0, 1), fail(errno.EPERM)]
    return b"".join([*steps, step(RETURN, ALLOW)])


def restrict_calls(program: bytes) -> None:
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    given = ctypes.create_string_buffer(described, len(described))
    prctl("seccomp", SET_SECCOMP, 2, ctypes.addressof(given))


def drop_capabilities(kept: tuple[int, ...]) -> None:
    for capability in range(64):
        if capability not in kept:
            with suppress(CannotConfine):  # unknown to this kernel, or not permitted
                prctl("capabilities", DROP_CAPABILITY, capability)
    permitted = sum(1 << capability for capability in kept) if os.geteuid() == 0 else 0
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    header = struct.pack("=Ii", CAPSET_VERSION, 0)
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    if libc.syscall(ctypes.c_long(CAPSET[os.uname().machine]), header, data) < 0:
        # Root in a container may lack some of these capabilities: drop all.
        syscall("capabilities", CAPSET[os.uname().machine], header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))


# Namespaces


def separate(order: dict[str, Any]) -> None:
    """Enter namespaces with private processes and a disk that is read-only outside the writable folders."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        call("namespaces", libc.unshare, ctypes.c_int(NEW_MOUNTS | NEW_PROCESSES))
    else:
        call("namespaces", libc.unshare, ctypes.c_int(NEW_USERS | NEW_MOUNTS | NEW_PROCESSES))
        for file, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as opened:
                opened.write(words)
    mount(None, "/", RECURSIVE | PRIVATE)
    writable = [path for path in order["writing"] if not os.statvfs(path).f_flag & os.ST_RDONLY]
    for path in writable:
        mount(path, path, BIND | RECURSIVE)
    set_read_only("/", True, ALL_BENEATH)
    for path in writable:
        set_read_only(path, False, 0)
    if has_private_memory(order):
        mount("tmpfs", SHARED_MEMORY, 0, "tmpfs", "size=256m,mode=1777")


def has_private_memory(order: dict[str, Any]) -> bool:
    """Whether programs get private shared memory, which is impossible if a needed path lies there."""
    needed = [*order["reading"], *order["writing"]]
    return os.path.isdir(SHARED_MEMORY) and not any(f"{path}/".startswith(f"{SHARED_MEMORY}/") for path in needed)


def mount(source: str | None, target: str, flags: int, kind: str | None = None, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call("mount", libc.mount, *texts[:3], ctypes.c_ulong(flags), texts[3])


def set_read_only(path: str, read_only: bool, flags: int) -> None:
    attributes = struct.pack("=QQQQ", READ_ONLY if read_only else 0, 0 if read_only else READ_ONLY, 0, 0)
    folder, size = ctypes.c_int(CURRENT_FOLDER), ctypes.c_size_t(len(attributes))
    syscall("mount_setattr", MOUNT_SETATTR, folder, os.fsencode(path), ctypes.c_uint(flags), attributes, size)


def can_separate(order: dict[str, Any]) -> bool:
    """Test namespaces in a child process, because a partial failure cannot be undone."""
    child = os.fork()
    if child == 0:
        try:
            separate(order)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


# Processes


def become(order: dict[str, Any], separated: bool) -> NoReturn:
    """Replace this process by the confined program."""
    try:
        version, machine = landlock_version(), os.uname().machine
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(order["folder"])  # after the mounts: the old directory handle is still writable
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        drop_capabilities(KEPT_CAPABILITIES if os.geteuid() == 0 else ())
        prctl("parent", SET_PARENT_DEATH, signal.SIGKILL)
        prctl("privileges", NO_NEW_PRIVILEGES, 1)
        program = filter_program(
            machine, metadata=separated, signals=separated or version >= 6, truncation=version >= 3
        )
        writing = [*order["writing"], *([SHARED_MEMORY] if separated and has_private_memory(order) else [])]
        restrict_files(order["reading"], writing, order["devices"], version)
        restrict_calls(program)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and child processes inherit that
            signal.signal(number, signal.SIG_DFL)
        os.execve(order["command"][0], order["command"], dict(os.environ))  # noqa: S606
    except BaseException as error:
        send(order, {"refused": f"{type(error).__name__}: {error}"})
        os._exit(125)


def send(order: dict[str, Any], outcome: dict[str, Any]) -> None:
    with suppress(OSError):
        os.write(order["report"], json.dumps(outcome).encode() + b"\n")


def exit_code(status: int) -> int:
    """Return the exit code as shells do: 128 and above for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def run_init(order: dict[str, Any]) -> NoReturn:
    """Run as the first process of a PID namespace, whose exit ends all others."""
    prctl("parent", SET_PARENT_DEATH, signal.SIGKILL)
    child = os.fork()
    if child == 0:
        become(order, True)
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(exit_code(status))


def children() -> list[int]:
    mine: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    mine.append(int(name))
    return mine


def kill_descendants() -> None:
    """Kill all descendants; as a subreaper, this process inherits orphans."""
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        for child in children():
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def supervise(order: dict[str, Any]) -> None:
    os.set_inheritable(order["report"], False)
    separated = bool(order["namespaces"]) and can_separate(order)
    if separated:
        separate(order)
    prctl("reaper", SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        run_init(order) if separated else become(order, False)
    watching = select.poll()
    ended = os.pidfd_open(child)
    watching.register(ended, select.POLLIN)
    watching.register(0, select.POLLHUP)
    ready = [descriptor for descriptor, _ in watching.poll()]
    if ended not in ready:  # the parent has closed standard input
        os.kill(child, signal.SIGKILL)
    code = exit_code(os.waitpid(child, 0)[1])
    kill_descendants()
    send(order, {"code": code, "separated": separated})


def main() -> None:
    order = json.loads(sys.argv[1])
    try:
        supervise(order)
    except Exception as error:
        send(order, {"refused": f"{type(error).__name__}: {error}"})
        sys.exit(125)


if __name__ == "__main__":
    main()
