"""The system-call filter, run by an interpreter of classic BPF written from its manual."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from agentkit.errors import SandboxError
from agentkit.sandboxes.seccomp import NUMBERS, filter_program

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
READ = {"x86_64": 0, "aarch64": 63}


def run(program: bytes, machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """Return the errno that the filter gives, 0 where it allows."""
    data = struct.pack("<IIQ6Q", number, ARCH[machine] if arch is None else arch, 0,
                       *args, *[0] * (6 - len(args)))  # fmt: skip
    code = [struct.unpack("<HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    at, a = 0, 0
    while True:
        op, jump_true, jump_false, k = code[at]
        at += 1
        if op == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            a = struct.unpack_from("<I", data, k)[0]
        elif op == 0x06:  # BPF_RET | BPF_K
            assert k == 0x7FFF0000 or k >> 16 == 5
            return 0 if k == 0x7FFF0000 else k & 0xFFFF
        else:
            test = {0x15: a == k, 0x35: a >= k, 0x45: bool(a & k)}[op]
            at += jump_true if test else jump_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request):
    return request.param


def test_ordinary_calls_pass(machine):
    program = filter_program(machine)
    assert run(program, machine, READ[machine]) == 0
    denied = set(NUMBERS[machine].values())
    for number in range(470):
        if number not in denied:
            assert run(program, machine, number) == 0


def test_every_listed_call_is_denied(machine):
    program = filter_program(machine)
    for name, number in NUMBERS[machine].items():
        if name not in ("socket", "ioctl", "clone", "clone3"):
            assert run(program, machine, number) == errno.EPERM, name
    assert run(program, machine, NUMBERS[machine]["clone3"]) == errno.ENOSYS


@pytest.mark.parametrize("family", range(46))
def test_socket_families(machine, family):
    expected = 0 if family in (1, 2, 10) else errno.EAFNOSUPPORT
    number = NUMBERS[machine]["socket"]
    assert run(filter_program(machine), machine, number, family) == expected
    # the kernel looks at 32 bits of the family; a set upper half must not open a way round
    assert run(filter_program(machine), machine, number, family | 1 << 32) == expected


def test_clone_and_ioctl_are_judged_by_their_flags(machine):
    program, numbers = filter_program(machine), NUMBERS[machine]
    assert run(program, machine, numbers["clone"], 17) == 0
    assert run(program, machine, numbers["clone"], 0x10000000 | 17) == errno.EPERM
    assert run(program, machine, numbers["ioctl"], 0, 0x5401) == 0
    assert run(program, machine, numbers["ioctl"], 0, 0x5412) == errno.EPERM
    assert run(program, machine, numbers["ioctl"], 0, 0x541C) == errno.EPERM


def test_other_instruction_sets_get_nothing(machine):
    other = ARCH["aarch64" if machine == "x86_64" else "x86_64"]
    assert run(filter_program(machine), machine, READ[machine], arch=other) == errno.ENOSYS
    assert run(filter_program("x86_64"), "x86_64", 0x40000000 | 41, 1) == errno.ENOSYS


def test_an_unknown_architecture_is_refused():
    with pytest.raises(SandboxError, match="riscv64"):
        filter_program("riscv64")


@pytest.mark.parametrize(
    ("machine", "name"), [("x86_64", "asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")]
)
def test_numbers_are_those_of_the_kernel_headers(machine, name):
    header = next(Path("/usr/include").rglob(name), None)
    if header is None:
        pytest.skip(f"needs the kernel's header {name}")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text()))
    found = {call: int(known[call]) for call in NUMBERS[machine] if call in known}
    assert len(found) > 45  # a header older than a call does not know it
    assert found == {call: NUMBERS[machine][call] for call in found}
