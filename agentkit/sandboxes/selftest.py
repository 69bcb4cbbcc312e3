"""Layer: boundaries. What a sandbox back end enforces on this machine, measured and not assumed.

Every limit is overstepped in a small sandbox; a word of praise is given only where that failed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path

from agentkit.sandboxes.base import Limits, Sandbox, SandboxBackend
from agentkit.sandboxes.launching import interpreter

ENFORCED = "enforced"
LIMITS = Limits(memory_mb=128, disk_mb=4, processes=32, cpus=1.0)

_NETWORK = """
import socket, sys
def reach(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(1)
            s.connect(address)
            return True
    except OSError:
        return False
found = [reach(socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))),
         reach(socket.AF_UNIX, "\\0" + sys.argv[2])]
try:
    socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK
    found.append(True)
except OSError:
    found.append(False)
print("open" if any(found) else "closed")
"""
_DISK = """
import os
sizes = []
for folder in ("/work", "/home/agent", "/tmp", "/dev/shm", "/logs", "/"):
    n = 0
    try:
        with open(folder + "/fill", "wb", buffering=0) as f:
            while n < 64:
                n += f.write(bytes(1 << 20)) / (1 << 20)
    except OSError:
        pass
    sizes.append(n)
    if os.path.exists(folder + "/fill"):
        os.unlink(folder + "/fill")
print(max(sizes))
"""
_PROCESSES = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        n += 1
except OSError:
    pass
print(n)
"""
_MEMORY = """
import os, sys
count, size = int(sys.argv[1]), int(sys.argv[2]) << 20
pids = []
for _ in range(count):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            block = bytearray(size)
            block[::4096] = b"x" * len(block[::4096])
            os.write(write, b"got")
        except MemoryError:
            pass
        os.close(write)
        import time
        time.sleep(0.3)
        os._exit(0)
    os.close(write)
    pids.append(read)
print(sum(os.read(fd, 3) == b"got" for fd in pids))
"""
_CPU = """
import os, time
start = os.times()
end = time.monotonic() + 0.3
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() < end:
            pass
        os._exit(0)
os.wait()
os.wait()
used = os.times()
print((used.children_user + used.children_system) / 0.3)
"""

_results: dict[str, dict[str, str]] = {}


def _python(box: Sandbox, code: str, *arguments: str, timeout_s: float = 20) -> str:
    result = box.exec(["python3", "-c", code, *arguments], timeout_s=timeout_s)
    return result.stdout.decode(errors="replace").strip()


def _number(text: str) -> float:
    """The probe's number; infinity where it gave none, so that nothing counts as enforced."""
    try:
        return float(text)
    except ValueError:
        return float("inf")


def _network(box: Sandbox) -> str:
    name = f"agentkit-{os.getpid()}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{name}")
        for server in (tcp, abstract):
            server.listen()
        said = _python(box, _NETWORK, str(tcp.getsockname()[1]), name)
    return ENFORCED if said == "closed" else "not enforced: a socket of the host was reached"


def _filesystem(box: Sandbox) -> str:
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parents[2], prefix=".selftest-") as secret:
        line = (
            f"cat {secret.name} && echo read; touch /usr/x /etc/x /x 2>&1 && echo written; echo end"
        )
        said = box.exec(line, timeout_s=10).stdout.decode().split()
    if "read" in said or "written" in said or said[-1:] != ["end"]:
        return "not enforced: a path of the host was read, or a read-only one written"
    return ENFORCED


def _memory(box: Sandbox) -> str:
    limit = LIMITS.memory_mb
    if _number(_python(box, _MEMORY, "1", str(2 * limit))) > 0:
        return "not enforced: one process took twice the limit"
    if _number(_python(box, _MEMORY, "2", str(3 * limit // 4))) > 1:
        return "not enforced: each process is limited, the sum of several is not (no cgroup)"
    return ENFORCED


def _cpus(box: Sandbox) -> str:
    if (used := _number(_python(box, _CPU))) > 1.1 * LIMITS.cpus:
        return f"not enforced: {used:.1f} cores used, {LIMITS.cpus:g} given"
    # A busy machine gives no more to anyone: only a control outside makes it a finding.
    control = subprocess.run([interpreter(), "-I", "-c", _CPU], capture_output=True, text=True)
    if _number(control.stdout) <= 1.5 * LIMITS.cpus:
        return "not enforced: not measurable, the machine has no second core free"
    return ENFORCED


def _time(box: Sandbox) -> str:
    line = "trap '' TERM; (setsid sleep 60 &); while :; do :; done"
    result = box.exec(line, timeout_s=0.2)
    late = not result.timed_out or result.duration_s > 2
    left = int(box.exec("ls -d /proc/[0-9]* | wc -l", timeout_s=10).stdout or b"9")
    # Left are process 1, bash, ls and wc.
    return "not enforced: a process outlived the limit" if late or left > 4 else ENFORCED


def measure(backend: SandboxBackend) -> dict[str, str]:
    """``SandboxBackend.enforcement`` for any back end; about two seconds, once for each process.

    Raises SandboxError where no sandbox can be made at all.
    """
    if backend.name not in _results:
        found = {}
        with backend.open(limits=LIMITS) as box:
            found["network"] = _network(box)
            found["filesystem"] = _filesystem(box)
            size = _number(_python(box, _DISK))
            found["disk"] = ENFORCED if size <= 16 else f"not enforced: {size:.0f} MiB written"
            count = _number(_python(box, _PROCESSES))
            held = count <= LIMITS.processes
            found["processes"] = ENFORCED if held else f"not enforced: {count:.0f} made"
            found["memory"] = _memory(box)
            found["cpus"] = _cpus(box)
            found["time"] = _time(box)
            nested = box.exec("unshare --user true && echo made", timeout_s=10)
            made = b"made" in nested.stdout
            found["user_namespaces"] = "not enforced: one was made" if made else ENFORCED
        _results[backend.name] = found
    return dict(_results[backend.name])
