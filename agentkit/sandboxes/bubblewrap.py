"""Layer: boundaries. Sandboxes by bubblewrap: one unprivileged process tree for each, no network.

Namespaces for user, mount, process, network, ipc and host name; an empty set of capabilities;
the system-call filter of ``seccomp.py``; sized tmpfs for all that is writable; the host's /usr
and the kit's Python read-only, and nothing else of the host. What holds on the machine at hand is
measured by ``enforcement``.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import (
    WORK,
    ExecResult,
    Limits,
    Mount,
    Sandbox,
    SandboxBackend,
    TooLarge,
)
from agentkit.sandboxes.inside.exchange import pack, unpack
from agentkit.sandboxes.launching import Started, launcher
from agentkit.sandboxes.layout import arguments, base_environment, program, staged_program
from agentkit.types import Files

OUTPUT_BYTES = 4 << 20
"""Limit for each of standard output and standard error of one command."""
_NAMESPACES = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
)


def _told(fd: int) -> str:
    """The line of standard error that tells most: the first, of a traceback the last."""
    if not select.select([fd], [], [], 0.2)[0]:
        return ""
    lines = os.read(fd, 1 << 16).decode(errors="replace").splitlines()
    said = [line for line in lines if line.strip()] or [""]
    return said[-1] if said[0].startswith("Traceback") else said[0]


class BubblewrapSandbox(Sandbox):
    """One bubblewrap with a supervisor as its process 1, spoken to over a socket pair."""

    def __init__(self, limits: Limits, mounts: Sequence[Mount], gateway: Path | None) -> None:
        self.limits, self.launcher = limits, launcher()
        self.closed = False
        bwrap = staged_program(self.launcher)
        self.control, theirs = socket.socketpair()
        errors, errors_end = os.pipe()
        try:
            args = arguments(self.launcher, limits, mounts, gateway, theirs.detach())
            try:
                text = "\0".join(args.words[: args.words.index("--")]) + "\0"
                argv = [bwrap, "--args", args.content(text.encode())]
                argv += args.words[args.words.index("--") :]
                self.started: Started = self.launcher.start(argv, errors_end, args.fds)
            finally:
                args.close()
                os.close(errors_end)
            self._await_ready(errors)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(errors)

    def _await_ready(self, errors: int) -> None:
        try:
            if self._receive(20.0) == [b"ready"]:
                return
            said = "a garbled answer"
        except SandboxError:
            said = _told(errors) or "no answer from the sandbox"
        hint = _NAMESPACES if any(w in said for w in ("namespace", "uid map", "setgroups")) else ""
        raise SandboxError("bubblewrap", said, "a started sandbox", hint)

    def _receive_exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self.control.settimeout(left)
            data = self.control.recv(min(size - len(parts), 1 << 20))
            if not data:
                raise ConnectionError("the sandbox is gone")
            parts += data
        return bytes(parts)

    def _receive(self, timeout_s: float) -> list[bytes]:
        deadline = time.monotonic() + timeout_s
        try:
            size = int.from_bytes(self._receive_exactly(8, deadline), "big")
            if size > 1 << 30:
                raise ValueError(f"an answer of {size} bytes")
            return unpack(self._receive_exactly(size, deadline))
        except (OSError, ValueError) as error:
            raise SandboxError("sandbox", str(error), "an answer of its supervisor") from error

    def _call(self, fields: list[bytes], timeout_s: float) -> list[bytes]:
        try:
            self.control.settimeout(timeout_s)
            self.control.sendall(pack(fields))
        except OSError as error:
            raise SandboxError("sandbox", f"gone: {error}", "a running sandbox") from error
        answer = self._receive(timeout_s)
        if answer and answer[0] == b"ok":
            return answer[1:]
        text = b" ".join(answer[1:]).decode(errors="replace")
        kind = TooLarge if answer and answer[0] == b"too large" else SandboxError
        raise kind("sandbox", text or "a garbled answer", f"room for {fields[0].decode()}")

    def put(self, files: Files, to: str = WORK) -> None:
        fields = [b"put", os.fsencode(to)]
        for name, data in files.items():
            if name.startswith("/") or ".." in name.split("/") or not name:
                raise SandboxError("sandbox", f"path {name!r}", "a relative path below its folder")
            fields += [os.fsencode(name), data]
        self._call(fields, 60.0)

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes = b"",
    ) -> ExecResult:
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        values = {**base_environment(), **(env or {})}
        most, memory = self.limits.processes, self.limits.memory_mb
        numbers = [b"%d" % n for n in (int(timeout_s * 1000), most, memory, OUTPUT_BYTES)]
        fields = [b"exec", os.fsencode(cwd), *numbers, stdin, b"%d" % len(argv)]
        fields += [os.fsencode(word) for word in argv]
        fields += [os.fsencode(f"{name}={value}") for name, value in values.items()]
        status, duration, cut, out, err = self._call(fields, timeout_s + 20)
        code = int(status) if status else None
        return ExecResult(code, out, err, float(duration), cut == b"1")

    def get(self, path: str = WORK, *, max_bytes: int = 16 << 20, max_files: int = 2000) -> Files:
        fields = [b"get", os.fsencode(path), b"%d" % max_bytes, b"%d" % max_files]
        answer = self._call(fields, 60.0)
        files: Files = {}
        for raw, data in sorted(zip(answer[::2], answer[1::2], strict=True)):
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                continue  # a name that no record can hold; left out like links and devices
            if name.startswith("/") or ".." in name.split("/"):
                raise SandboxError("sandbox", f"path {name!r} in an answer", "a relative path")
            files[name] = data
        return files

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.control.close()
        if not hasattr(self, "started"):
            return
        try:
            if not self.launcher.wait(self.started, 2.0):
                self.launcher.kill(self.started)
                if not self.launcher.wait(self.started, 10.0):
                    raise SandboxError("sandbox", f"bubblewrap {self.started.pid} did not end")
        finally:
            os.close(self.started.exit_notice)


class BubblewrapBackend(SandboxBackend):
    """Makes bubblewrap sandboxes."""

    name = "bubblewrap"

    def __init__(self) -> None:
        program()

    def open(
        self, *, limits: Limits, mounts: Sequence[Mount] = (), gateway_socket: Path | None = None
    ) -> BubblewrapSandbox:
        if gateway_socket is not None and os.geteuid() == 0:
            # Inside, an unprivileged uid connects; on the host the socket's folder guards it.
            gateway_socket.chmod(0o666)
        return BubblewrapSandbox(limits, mounts, gateway_socket)

    def enforcement(self) -> dict[str, str]:
        from agentkit.sandboxes.selftest import measure

        return measure(self)
