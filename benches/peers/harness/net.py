"""Where programs run: network namespaces, processors, and starting and ending processes by pid."""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time


class Failed(Exception):
    """A measurement that gave no number; says why."""


class Place:
    """A network namespace (or this process's own, where it has no name) and the addresses in it."""

    realtime = False

    def __init__(self, namespace, address, dev, cpu):
        self.namespace, self.address, self.dev, self.cpu = namespace, address, dev, cpu

    def command(self, argv):
        argv = ["chrt", "-f", "10", *argv] if self.realtime else argv
        pin = ["taskset", "-c", str(self.cpu)] if (os.cpu_count() or 1) > 1 and shutil.which("taskset") else []
        return (["ip", "netns", "exec", self.namespace] if self.namespace else []) + pin + argv

    def start(self, argv, env=None, out=subprocess.PIPE):
        return subprocess.Popen(self.command(argv), stdin=subprocess.DEVNULL, stdout=out,
                                stderr=out if out is not subprocess.PIPE else subprocess.PIPE, text=True,
                                env={**os.environ, **(env or {})})


def listens(process, port):
    """Whether anything in the network namespace of the process listens on that TCP port."""
    for table in (f"/proc/{process.pid}/net/tcp", f"/proc/{process.pid}/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for line in lines:
                field = line.split()
                if field[3] == "0A" and int(field[1].rsplit(":", 1)[1], 16) == port:
                    return True
    return False


def end(process):
    """Ends a process that we started; returns what it printed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def run_pair(server, client, server_argv, client_argv, port=None, env=None, patience=60):
    """Starts a server, waits till it listens on the TCP port (or says that it is ready), runs the client and returns what that
    printed."""
    # A file, which takes any amount without somebody reading it meanwhile.
    said = tempfile.TemporaryFile("w+")
    first = server.start(server_argv, env, said)
    try:
        until = time.monotonic() + 15
        ready = (lambda: listens(first, port)) if port else (lambda: os.pread(said.fileno(), 5, 0) == b"ready")
        while first.poll() is None and not ready() and time.monotonic() < until:
            time.sleep(0.005)
        if first.poll() is not None:
            said.seek(0)
            raise Failed(f"{server_argv[0]}: {last_line(said.read())}")
        second = client.start(client_argv, env)
        try:
            out, err = second.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            end(second)
            raise Failed(f"{client_argv[0]}: not done after {patience} s") from None
        if second.returncode:
            raise Failed(f"{client_argv[0]}: exit {second.returncode}: {last_line(err or out)}")
        return out
    finally:
        end(first)
        said.close()


class Links:
    """One namespace with a loopback interface of its own, and two with a veth between them."""
    MTU = 4200

    def __init__(self, realtime):
        Place.realtime = realtime
        self.names = [f"ferroce-{os.getpid()}-{which}" for which in ("lo", "a", "b")]
        self.allowed = os.geteuid() == 0 and shutil.which("ip") is not None
        if not self.allowed:
            lo = [Place(None, f"127.0.0.{n}", "lo", cpu) for n, cpu in ((2, 0), (3, 1))]
            self.lo, self.veth = lo, None
            return
        lo, a, b = self.names
        try:
            for name in self.names:
                self.ip("netns", "add", name)
                self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", a, "link", "add", "veth0", "mtu", str(self.MTU), "type", "veth", "peer", "name", "veth0",
                    "mtu", str(self.MTU), "netns", b)
            for name, host in ((a, 1), (b, 2)):
                self.ip("-n", name, "addr", "add", f"10.88.0.{host}/24", "dev", "veth0")
                self.ip("-n", name, "link", "set", "veth0", "up")
        except BaseException:
            self.close()
            raise
        self.lo = [Place(lo, f"127.0.0.{n}", "lo", cpu) for n, cpu in ((2, 0), (3, 1))]
        self.veth = [Place(a, "10.88.0.1", "veth0", 0), Place(b, "10.88.0.2", "veth0", 1)]

    @staticmethod
    def ip(*argv):
        r = subprocess.run(["ip", *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if r.returncode:
            raise Failed(f"ip {' '.join(argv)}: {last_line(r.stderr)}")

    def close(self):
        for name in self.names if self.allowed else []:
            subprocess.run(["ip", "netns", "del", name], stdin=subprocess.DEVNULL, capture_output=True)
