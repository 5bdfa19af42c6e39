"""What host applications do to the process and to the threads in which they call a library, for some fuzz cases.

Another floating-point mode, threads cancelled on a 32 KiB stack, forked children, resource limits. The choice depends
only on the case's random numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import random
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator

LIBC, LIBM = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")
ROUNDINGS = (0x400, 0x800, 0xC00) if platform.machine() == "x86_64" else (0x400000, 0x800000, 0xC00000)
"""Modes of fesetround: down, up and towards zero."""
MXCSR, FLUSH = 28, 0x8040
STACK = 32 << 10
CANCELED = ctypes.c_void_p(-1).value
CHILD_S = 60


def floats() -> bytes:
    """Return this thread's floating-point environment without the exception flags."""
    environment = ctypes.create_string_buffer(64)
    LIBM.fegetenv(environment)
    if platform.machine() == "x86_64":
        (control,) = struct.unpack_from("<I", environment, MXCSR)
        return struct.pack("<IH", control & ~0x3F, *struct.unpack_from("<H", environment))
    return environment.raw


def set_floats(rng: random.Random) -> None:
    """Set another rounding mode or flush denormals. Traps are not enabled because Python would not survive them."""
    if platform.machine() == "x86_64" and rng.random() < 0.5:
        environment = ctypes.create_string_buffer(64)
        LIBM.fegetenv(environment)
        (control,) = struct.unpack_from("<I", environment, MXCSR)
        struct.pack_into("<I", environment, MXCSR, control | FLUSH)
        LIBM.fesetenv(environment)
    else:
        LIBM.fesetround(rng.choice(ROUNDINGS))


@contextlib.contextmanager
def other_floats(rng: random.Random, problems: list[str]) -> Iterator[None]:
    before = ctypes.create_string_buffer(64)
    LIBM.fegetenv(before)
    set_floats(rng)
    chosen = floats()
    try:
        yield
        if floats() != chosen:
            problems.append("the host's floating-point mode has changed")
    finally:
        LIBM.fesetenv(before)


@contextlib.contextmanager
def limited(rng: random.Random) -> Iterator[None]:
    """Limit the address space or the open files. Failures of Python itself do not count."""
    kind = rng.choice((resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    before = resource.getrlimit(kind)
    if kind == resource.RLIMIT_AS:
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        most = now + rng.choice((0, 1 << 16, 1 << 20, 1 << 24))
    else:
        most = len(os.listdir("/proc/self/fd")) - 1 + rng.randrange(3)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # logged errors are expected
    resource.setrlimit(kind, (most, before[1]))
    try:
        with contextlib.suppress(MemoryError, OSError):
            yield
    finally:
        resource.setrlimit(kind, before)
        logging.disable(level)


def cancelled(rng: random.Random, function: ctypes._CFuncPtr, handle: int) -> int | None:
    """Call function(handle) in a thread that is cancelled meanwhile. Returns its result, or None if the call did not
    complete, which must not happen."""
    attributes, thread, result = ctypes.create_string_buffer(64), ctypes.c_ulong(), ctypes.c_void_p()
    LIBC.pthread_attr_init(attributes)
    LIBC.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK))
    failed = LIBC.pthread_create(ctypes.byref(thread), attributes, function, ctypes.c_void_p(handle))
    LIBC.pthread_attr_destroy(attributes)
    if failed:
        raise OSError(failed, os.strerror(failed))
    LIBC.usleep(ctypes.c_uint(rng.choice((0, 0, 10, 100, 1000))))
    LIBC.pthread_cancel(thread)
    LIBC.pthread_join(thread, ctypes.byref(result))
    return None if result.value == CANCELED else ctypes.c_int32((result.value or 0) & 0xFFFF_FFFF).value


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """Run calls in a forked child, which must end. Returns the problems."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            os.write(writer, "\n".join(work()).encode()[:4000])
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - nothing of the parent's may run here
            os.write(writer, repr(error).encode()[:4000])
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read().decode()
    status = os.waitpid(child, 0)[1]
    found = [f"in a child: {line}" for line in text.splitlines()]
    return found or ([f"a child ended with {os.waitstatus_to_exitcode(status)}"] if status else [])
