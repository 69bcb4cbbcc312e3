"""Layer: boundaries. The system-call filter of a sandbox as a classic BPF program.

Written by hand, since libseccomp is not on every machine. All is allowed but: what changes
mounts, namespaces, modules, keys, clocks or other processes; io_uring (which bypasses filters);
and sockets of any family but unix, IPv4 and IPv6. AF_VSOCK in particular reaches the host from
an empty network namespace. Numbers: Linux' ``asm/unistd.h``; layout: ``linux/seccomp.h``.
"""

from __future__ import annotations

import errno
import platform
import struct

from agentkit.errors import SandboxError

_NAMES = (
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "setns", "unshare", "ptrace", "process_vm_readv",
    "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp", "bpf", "perf_event_open",
    "userfaultfd", "keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "kexec_load", "kexec_file_load", "open_by_handle_at",
    "name_to_handle_at", "init_module", "finit_module", "delete_module", "reboot", "swapon",
    "swapoff", "syslog", "acct", "quotactl", "vhangup", "fanotify_init", "settimeofday",
    "clock_settime", "clock_adjtime", "adjtimex", "lookup_dcookie", "nfsservctl", "socket",
    "ioctl", "clone", "clone3",
)  # fmt: skip
_X86_64 = (
    165, 166, 155, 161, 429, 428, 430, 431, 432, 433, 442, 308, 272, 101, 310, 311, 440, 438, 312,
    321, 298, 323, 250, 248, 249, 425, 426, 427, 246, 320, 304, 303, 175, 313, 176, 169, 167, 168,
    103, 163, 179, 153, 300, 164, 227, 305, 159, 212, 180, 41, 16, 56, 435,
)  # fmt: skip
_AARCH64 = (
    40, 39, 41, 51, 429, 428, 430, 431, 432, 433, 442, 268, 97, 117, 270, 271, 440, 438, 272, 280,
    241, 282, 219, 217, 218, 425, 426, 427, 104, 294, 265, 264, 105, 273, 106, 142, 224, 225, 116,
    89, 60, 58, 262, 170, 112, 266, 171, 18, 42, 198, 29, 220, 435,
)  # fmt: skip
NUMBERS = {
    "x86_64": dict(zip(_NAMES, _X86_64, strict=True)),
    "aarch64": dict(zip(_NAMES, _AARCH64, strict=True)),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_CLONE_NEWUSER, _TIOCSTI, _TIOCLINUX = 0x10000000, 0x5412, 0x541C
_X32_BIT = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NR, _ARCH, _ARGS = 0, 4, 16


def _op(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jump_true, jump_false, k)


def _deny(error: int) -> bytes:
    return _op(_RETURN, _ERRNO | error)


def _only(number: int, body: list[bytes]) -> list[bytes]:
    """``body`` for one system call; a body always returns."""
    return [_op(_EQUAL, number, 0, len(body)), *body]


def filter_program(machine: str | None = None) -> bytes:
    """Return the BPF program for ``bwrap --seccomp``; ``machine`` as in ``uname -m``.

    Raises SandboxError for an architecture whose system-call numbers are not known here.
    """
    machine = machine or platform.machine()
    if machine not in NUMBERS:
        raise SandboxError(
            "sandbox", f"architecture {machine}", "x86_64 or aarch64", "use a machine of those"
        )
    numbers = dict(NUMBERS[machine])
    socket, ioctl, clone, clone3 = (
        numbers.pop(name) for name in ("socket", "ioctl", "clone", "clone3")
    )
    allow = _op(_RETURN, _ALLOW)
    program = [_op(_LOAD, _ARCH), _op(_EQUAL, _AUDIT_ARCH[machine], 1, 0), _deny(errno.ENOSYS)]
    program.append(_op(_LOAD, _NR))
    if machine == "x86_64":
        program += [_op(_AT_LEAST, _X32_BIT, 0, 1), _deny(errno.ENOSYS)]
    # Callers of clone3 fall back to clone, whose flags a filter can read.
    program += _only(clone3, [_deny(errno.ENOSYS)])
    refuse = [_deny(errno.EPERM), allow]
    program += _only(clone, [_op(_LOAD, _ARGS), _op(_ANY_BIT, _CLONE_NEWUSER, 0, 1), *refuse])
    terminal = [_op(_LOAD, _ARGS + 8), _op(_EQUAL, _TIOCSTI, 1, 0)]
    program += _only(ioctl, [*terminal, _op(_EQUAL, _TIOCLINUX, 0, 1), *refuse])
    families = [_op(_EQUAL, f, len(_FAMILIES) - i, 0) for i, f in enumerate(_FAMILIES)]
    program += _only(socket, [_op(_LOAD, _ARGS), *families, _deny(errno.EAFNOSUPPORT), allow])
    for number in numbers.values():
        program += _only(number, [_deny(errno.EPERM)])
    return b"".join([*program, allow])
