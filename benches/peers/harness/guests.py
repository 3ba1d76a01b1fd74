"""rxe to rxe and ferroce to ferroce between two Linux guests, over the same links (tests/interop/peer)."""
import contextlib
import os
import subprocess

from .net import Failed, last_line
from .tools import row

PEER = os.path.join(os.path.dirname(__file__), "..", "..", "..", "tests", "interop", "peer")
# Emulated processors: a tenth of a second to a few seconds each.
MESSAGES = {64: 4000, 4096: 2000, 65536: 200, 1 << 20: 20}
PORT = 18600
GUESTS = ("1", "2")
# Packets of our NIC and of rxe go over the same interface; on `packet` ours is a host of its own there.
OWN = "10.77.0.20{}"


# Of QEMU's threads: what carries packets comes before what computes, which would else keep it off its core for ever.
CARRIES, COMPUTES, WATCHES = 20, 10, 30


class Guests:
    """Two guests, up until closed."""

    def __init__(self, binaries, quick, realtime):
        self.quick, self.realtime = quick, realtime
        self.name = f"ferroce-{os.getpid()}-g"
        os.environ["RXE_PEER_NAME"] = self.name
        # Without checksums by the card the guests' kernel segments nothing for a UDP socket.
        self.peer("up", "--guests", "2", "--mtu", "4200", "--checksums", patience=300)
        self.rxe = True
        try:
            for guest in GUESTS:
                self.peer("put", "-g", guest, f"{binaries}/ferroce", "/root/", patience=300)
        except BaseException:
            self.close()
            raise
        self.port = PORT

    def peer(self, script, *argv, patience=60):
        # Who watches a run must have a processor, whatever the guests do.
        first = ["chrt", "-f", str(WATCHES)] if self.realtime and script == "exec" else []
        try:
            r = subprocess.run([*first, os.path.join(PEER, script), *argv], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"peer/{script}: not done after {patience} s") from None
        if r.returncode:
            raise Failed(f"peer/{script} {' '.join(argv)[:100]}: {last_line(r.stderr or r.stdout)}")
        return r.stdout

    def load_rxe(self, wanted):
        """Loads rdma_rxe in both guests, or unloads it: it has the RoCE port of all addresses."""
        if wanted == self.rxe:
            return
        load = ("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0 && "
                "until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do sleep 0.02; done")
        for guest in GUESTS:
            self.peer("exec", "-g", guest, "-t", "30", load if wanted else "rmmod rdma_rxe")
        self.rxe = wanted

    @contextlib.contextmanager
    def priority(self):
        """Real-time priority of the guests for one run, where it is asked for."""
        if not self.realtime:
            yield
            return
        cache = os.environ.get("RXE_PEER_CACHE") or os.path.expanduser("~/.cache/rxe-peer")
        pids = []
        for guest in GUESTS:
            with open(f"{cache}/run/{self.name}/g{guest}/pid") as file:
                pids.append(int(file.read()))
        own = os.sched_getscheduler(0), os.sched_getparam(0)
        # It ends runs that do not end by themselves.
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(WATCHES))
        try:
            for pid in pids:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    priority = CARRIES if int(thread) == pid else COMPUTES
                    os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(priority))
            yield
        finally:
            for pid in pids:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
            os.sched_setscheduler(0, *own)

    def pair(self, server, client, kind):
        """Runs one command in each guest; returns the row of numbers that the client printed."""
        self.port += 1
        job = self.peer("exec", "-g", "1", "--bg", f"exec {server} -p {self.port}").split()[-1]
        limit = "20" if self.realtime else "60"
        try:
            listening = f"grep -q ':{self.port:04X} .* 0A ' /proc/net/tcp"
            self.peer("exec", "-g", "1", "-t", limit, f"until {listening}; do sleep 0.02; done")
            out = self.peer("exec", "-g", "2", "-t", limit, f"{client} -p {self.port} 10.77.0.1", patience=90)
            return row(out, kind)
        finally:
            try:
                self.peer("exec", "-g", "1", "--kill", job)
            except Failed:
                pass    # it has ended by itself

    def run(self, who, tool, size):
        """One tool of rxe, or ours on the back end `who`; Gbit/s, or microseconds one way."""
        operation, kind = tool.split("-")
        messages = 1000 if kind == "lat" else MESSAGES[size]
        if self.quick:
            messages //= 4
        options = f"-F -s {size} -n {messages}" + (" --report_gbits" if kind == "bw" else "")
        if who == "rxe":
            self.load_rxe(True)
            both = [f"ib_{operation}_{kind} -d rxe0 -x 1 {options}"] * 2
        elif who == "udp":
            self.load_rxe(False)
            both = [f"/root/ferroce {tool} --backend udp --bind 10.77.0.{g} {options}" for g in GUESTS]
        else:
            both = [f"/root/ferroce {tool} --backend {who} --dev eth0 --ip {OWN.format(g)}/24 {options}" for g in GUESTS]
        with self.priority():
            numbers = self.pair(*both, kind)
        return numbers[4] if kind == "lat" else numbers[3]

    def close(self):
        subprocess.run([os.path.join(PEER, "down")], stdin=subprocess.DEVNULL, capture_output=True)
