"""The bubblewrap sandbox: its interface, its walls, and that nothing of it is left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from agentkit.errors import SandboxError
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import HOME, Limits, Mount, TooLarge
from agentkit.sandboxes.bubblewrap import OUTPUT_BYTES
from agentkit.sandboxes.layout import program

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kit():
    return backend("bubblewrap")


@pytest.fixture
def box(kit):
    with kit.open(limits=Limits(disk_mb=8, processes=64, memory_mb=256)) as box:
        yield box


def on_host(mark: str) -> list[int]:
    """Pids of the host whose command line holds ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def gone(mark: str, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while on_host(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def unique_seconds() -> str:
    """An argument of sleep that no other process has."""
    return f"{uuid.uuid4().int % 10**9 + 10**9}"


def out(box, command, **options):
    result = box.exec(command, timeout_s=options.pop("timeout_s", 20), **options)
    return result.stdout.decode()


# ------------------------------------------------------------------ interface


def test_files_go_in_and_come_out(box):
    box.put({"a/b.txt": b"\0x", "run.sh": b"#!/bin/bash\necho ran\n"})
    box.put({"settings.json": b"{}"}, HOME)
    assert out(box, "./run.sh; cat ~/settings.json; pwd") == "ran\n{}/work\n"
    box.exec("ln -s /etc/passwd link; mkfifo pipe; mkdir empty; echo new > a/new", timeout_s=10)
    assert box.get() == {"a/b.txt": b"\0x", "run.sh": b"#!/bin/bash\necho ran\n", "a/new": b"new\n"}
    assert box.get(HOME) == {"settings.json": b"{}"}


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_a_path_that_leaves_its_folder_is_refused(box, name):
    with pytest.raises(SandboxError, match="relative path"):
        box.put({name: b""})


def test_the_validators_folders_can_be_filled(box):
    for folder in ("/tests", "/logs/verifier", "/solution"):
        box.put({"f": b"x"}, folder)
        assert out(box, f"cat {folder}/f") == "x"


def test_a_command_gets_its_arguments_input_environment_and_folder(box):
    argv = ["python3", "-c", "import os,sys; print(sys.argv[1:], os.environ['X'], os.getcwd())"]
    said = out(box, [*argv, "a b", "$HOME", ""], env={"X": "=y="}, cwd="/tmp")
    assert said == "['a b', '$HOME', ''] =y= /tmp\n"
    assert out(box, ["cat"], stdin=b"in\0put") == "in\0put"
    assert box.exec("exit 7", timeout_s=10).exit_status == 7
    assert box.exec("kill -9 $$", timeout_s=10).exit_status == -9
    missing = box.exec(["no-such-program"], timeout_s=10)
    assert missing.exit_status == 127 and b"no-such-program" in missing.stderr


def test_output_is_cut_at_its_limit_and_flagged(box):
    result = box.exec(f"head -c {OUTPUT_BYTES + 1} /dev/zero; echo e >&2", timeout_s=20)
    assert len(result.stdout) == OUTPUT_BYTES and result.truncated and result.stderr == b"e\n"
    assert not box.exec("echo x", timeout_s=10).truncated


def test_too_large_a_workspace_is_told_apart_from_a_broken_sandbox(box):
    box.exec("truncate -s 1G sparse", timeout_s=10)
    with pytest.raises(TooLarge):
        box.get()
    with pytest.raises(TooLarge, match="No space"):
        box.put({"big": bytes(9 << 20)})
    assert out(box, "echo alive") == "alive\n"


def test_the_python_inside_is_the_kits_own_without_its_packages(box):
    code = "import sys; print(sys.version_info[:3]); import numpy"
    result = box.exec(["python3", "-c", code], timeout_s=10)
    assert result.stdout.decode().strip() == str(sys.version_info[:3])
    assert b"No module named 'numpy'" in result.stderr


def test_everything_is_the_same_in_every_sandbox(kit):
    look = "id; env | sort; tr '\\0' ' ' < /proc/1/cmdline; cat /etc/passwd; hostname"
    look += "; ls -l / | cut -c1-10"
    seen = set()
    for _ in range(3):
        with kit.open(limits=Limits()) as box:
            seen.add(out(box, look))
    assert len(seen) == 1


# ------------------------------------------------------------------ walls


def test_nothing_of_the_host_is_readable(box, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_SECRET", "TOPSECRET")
    secret = ROOT / f".secret-{uuid.uuid4().hex}"
    secret.write_text("TOPSECRET")
    (tmp_path / "secret").write_text("TOPSECRET")
    try:
        line = (
            f"cat {secret} {tmp_path}/secret /proc/1/root{secret} /proc/*/environ /proc/1/cmdline;"
            f"ls {Path.home()} {ROOT}; find / -xdev -name '{secret.name}' 2>/dev/null; echo end"
        )
        said = out(box, line)
    finally:
        secret.unlink()
    assert said.endswith("end\n")
    for word in ("TOPSECRET", secret.name, str(ROOT), "bwrap"):
        assert word not in said


def test_host_processes_are_out_of_sight_and_reach(box):
    mark = unique_seconds()
    with subprocess.Popen(["sleep", mark]) as sleeper:
        said = out(box, f"cat /proc/*/cmdline | tr '\\0' ' '; kill -9 {sleeper.pid}; kill -9 -1")
        assert mark not in said
        assert sleeper.poll() is None
        sleeper.kill()


def test_the_network_is_closed(box):
    name = f"agentkit-{uuid.uuid4().hex}"
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("0.0.0.0", 0))
        abstract.bind(f"\0{name}")
        tcp.listen()
        abstract.listen()
        code = f"""
import socket
def reach(family, address):
    s = socket.socket(family); s.settimeout(2)
    try: s.connect(address); return "open"
    except OSError as e: return type(e).__name__
print(reach(2, ("127.0.0.1", {tcp.getsockname()[1]})), reach(2, ("192.0.2.1", 80)),
      reach(1, "\\0{name}"))
"""
        said = out(box, ["python3", "-c", code])
    assert said.split() == ["ConnectionRefusedError", "OSError", "ConnectionRefusedError"]


@pytest.mark.parametrize("family", [16, 17, 38, 40])
def test_other_socket_families_are_denied(box, family):
    code = f"import socket; socket.socket({family}, 1)"
    assert b"Address family not supported" in box.exec(["python3", "-c", code], timeout_s=10).stderr


def test_system_calls_that_reach_out_are_denied(box):
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number, args in ((101, (16, 1, 0, 0)), (272, (0x10000000,)), (425, (1, 0)), (165, (0,) * 5),
                     (321, (0, 0, 0)), (310, (1, 0, 0, 0, 0, 0)), (435, (0, 0))):
    ctypes.set_errno(0)
    print(libc.syscall(number, *args), ctypes.get_errno())
"""
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    answers = out(box, ["python3", "-c", code]).split("\n")[:-1]
    assert answers == ["-1 1"] * 6 + ["-1 38"]
    assert b"failed" in box.exec("unshare --user true", timeout_s=10).stderr


def test_process_1_is_out_of_the_agents_reach(box):
    """It holds the control socket: whoever writes its memory forges results."""
    line = (
        "kill -9 1; kill -STOP 1; ls /proc/1/fd; cat /proc/1/environ; head -c1 /proc/1/mem;"
        "for f in /proc/1/fd/*; do echo x > $f; done; echo end"
    )
    result = box.exec(line, timeout_s=10)
    assert result.stdout == b"end\n"
    assert result.stderr.count(b"Permission denied") >= 3
    assert out(box, "echo alive") == "alive\n"


def test_no_privileges(box):
    status = out(box, "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status").split()
    assert dict(zip(status[::2], status[1::2], strict=True)) == {
        "CapEff:": "0" * 16, "CapBnd:": "0" * 16, "NoNewPrivs:": "1", "Seccomp:": "2",
    }  # fmt: skip


def test_writes_are_bounded_and_the_system_is_read_only(box):
    line = """for d in /work /home/agent /tmp /dev/shm /logs; do
        dd if=/dev/zero of=$d/big bs=1M count=64 2>/dev/null; stat -c %s $d/big; rm $d/big; done
        for f in /x /usr/x /etc/x /bin/x /dev/x /opt/x /opt/python/x /run/x; do
        touch $f 2>/dev/null && echo wrote $f; done; rm -f /bin /etc/passwd
        cat /bin/true | wc -c"""
    lines = out(box, line).split()
    sizes, rest = [int(n) for n in lines[:5]], lines[5:]
    assert all(0 < size <= 16 << 20 for size in sizes) and sizes[:3] == [8 << 20] * 3
    assert len(rest) == 1 and int(rest[0]) > 1000


def test_a_fork_bomb_is_bounded_and_cleared_away(box):
    code = """
import os, time
n = 0
try:
    while n < 2000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError as error:
    print("stopped", n, error.errno)
"""
    stopped, count, error = out(box, ["python3", "-c", code]).split()
    assert stopped == "stopped" and int(count) < 64 and int(error) == 11
    # nothing is left of it: there is room for as many again
    assert out(box, ["python3", "-c", code]).split()[1] == count
    assert box.exec(":(){ :|:& };:; sleep 30", timeout_s=1).timed_out
    # process 1, bash, ls and, where it has started already, wc
    assert int(out(box, "ls -d /proc/[0-9]* | wc -l")) <= 4


def test_a_greedy_process_is_stopped(box):
    result = box.exec(["python3", "-c", "b = bytearray(1 << 30)"], timeout_s=20)
    assert b"MemoryError" in result.stderr


def test_the_time_limit_kills_the_whole_tree(box):
    mark = unique_seconds()
    line = f"trap '' TERM HUP INT; (setsid sleep {mark} &); nohup sleep {mark} & sleep {mark}"
    started = time.monotonic()
    result = box.exec(line, timeout_s=0.5)
    assert result.timed_out and time.monotonic() - started < 5
    assert not on_host(mark)
    assert out(box, "echo alive") == "alive\n"


def test_what_a_command_leaves_running_ends_with_it(box):
    mark = unique_seconds()
    assert out(box, f"(setsid sleep {mark} >/dev/null 2>&1 &); sleep {mark} & echo x") == "x\n"
    assert not on_host(mark)


# ------------------------------------------------------------------ relay


def test_the_gateways_socket_is_reached_on_port_8000(kit, tmp_path):
    path = tmp_path / "gw"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=answer)
        thread.start()
        code = """
import socket
s = socket.create_connection(("127.0.0.1", 8000)); s.sendall(b"hello"); print(s.recv(100))
"""
        with kit.open(limits=Limits(), gateway_socket=path) as box:
            box.exec("kill -9 -1", timeout_s=5)
            assert out(box, ["python3", "-c", code]) == "b'HELLO'\n"
        thread.join(5)


# ------------------------------------------------------------------ leftovers


CHILD = """
import sys, threading, time
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import Limits
kit = backend("bubblewrap")
boxes = [kit.open(limits=Limits()) for _ in range(3)]
for box in boxes:
    line = f"(setsid sleep {sys.argv[1]} &); sleep {sys.argv[1]}"
    threading.Thread(target=box.exec, args=(line,), kwargs={"timeout_s": 300}, daemon=True).start()
time.sleep(0.5)
from agentkit.sandboxes.launching import launcher
print("launcher", launcher().process.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_parents_death_takes_everything_down(how):
    mark = unique_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, mark], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline().split()[1])
        assert len(on_host(mark)) >= 6
        child.send_signal(how)
        assert gone(mark)
        child.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


CHURN = """
import sys, threading
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import Limits
kit = backend("bubblewrap")
def work():
    while True:
        with kit.open(limits=Limits()) as box:
            box.exec(f"(setsid sleep {sys.argv[1]} &); sleep 0.05", timeout_s=5)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_kills_at_random_moments_leave_nothing():
    mark, moments = unique_seconds(), random.Random(1)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", CHURN, mark], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            assert child.stdout is not None and child.stderr is not None
            child.stdout.readline()
            time.sleep(moments.uniform(0, 0.4))
            child.kill()
            # the launcher inherits standard error: this reads until it, too, is gone
            assert child.stderr.read() == b""
    assert gone(mark)


def test_close_ends_a_command_that_another_thread_waits_for(kit):
    mark = unique_seconds()
    box = kit.open(limits=Limits())
    seen = []

    def wait():
        try:
            box.exec(f"sleep {mark}", timeout_s=300)
        except SandboxError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not on_host(mark):
        time.sleep(0.02)
    box.close()
    assert not on_host(mark)
    thread.join(5)
    assert len(seen) == 1
    box.close()


def test_a_sandbox_outlives_the_thread_that_opened_it(kit):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(kit.open(limits=Limits())))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with opened[0] as box:
        assert out(box, "echo alive") == "alive\n"


def test_many_at_once_leave_no_descriptor_and_no_process(kit):
    kit.open(limits=Limits()).close()
    before = len(os.listdir("/proc/self/fd"))

    def use():
        for _ in range(4):
            with kit.open(limits=Limits()) as box:
                assert out(box, "echo $$") != ""

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sandbox_whose_process_is_killed_says_so(kit):
    box = kit.open(limits=Limits())
    os.kill(box.started.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"gone|answer"):
        box.exec("sleep 30", timeout_s=30)
    box.close()


def test_a_killed_launcher_is_replaced(kit):
    box = kit.open(limits=Limits())
    box.launcher.process.kill()
    box.launcher.process.wait()
    with pytest.raises(SandboxError):
        for _ in range(100):  # the kernel takes a moment
            box.exec("true", timeout_s=5)
            time.sleep(0.02)
    box.close()
    with kit.open(limits=Limits()) as fresh:
        assert out(fresh, "echo alive") == "alive\n"


# ------------------------------------------------------------------ other users and machines


def _as(argv, code, *more):
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{next(p for p in sys.path if p.endswith('site-packages'))}",
    }
    return subprocess.run(
        [*argv, "-c", code, *more], capture_output=True, text=True, env=env, cwd="/", timeout=60
    )


USE = """
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import Limits
from agentkit.errors import SandboxError
try:
    with backend("bubblewrap").open(limits=Limits(processes=20)) as box:
        print(box.exec("id -un; python3 -c 'import sys; print(sys.prefix)'", timeout_s=10).stdout)
except SandboxError as error:
    print("SandboxError", error)
"""


def test_without_root_and_with_the_systems_python():
    python = Path("/usr/bin/python3")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if os.geteuid() != 0 or not python.exists():
        pytest.skip("needs root to become another user, and a Python of the system")
    if version not in subprocess.run([python, "-V"], capture_output=True, text=True).stdout:
        pytest.skip(f"needs the system's Python to be {version}")
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(python), "-B"]
    done = _as(drop, USE)
    assert done.stdout == "b'agent\\n/opt/python\\n'\n", done.stderr


def test_without_user_namespaces_there_is_one_clear_line():
    wall = [str(program()), "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    done = _as([*wall, "--unshare-user", "--disable-userns", sys.executable], USE)
    assert done.stdout.startswith("SandboxError"), done.stderr
    assert "user.max_user_namespaces" in done.stdout and done.stdout.count("\n") == 1


def test_a_missing_mount_is_told(kit, tmp_path):
    with pytest.raises(SandboxError, match="none"):
        kit.open(limits=Limits(), mounts=[Mount(tmp_path / "none", "/opt/x")])


def test_enforcement_names_what_holds_here(kit):
    found = kit.enforcement()
    for name in ("network", "filesystem", "disk", "processes", "time", "user_namespaces"):
        assert found[name] == "enforced"
    # without cgroups nothing bounds the sum of several processes
    assert found["memory"].startswith("not enforced") and found["cpus"].startswith("not enforced")
