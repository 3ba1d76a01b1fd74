"""rxe to rxe and ferroce to ferroce between two Linux guests, over the same links (tests/interop/peer)."""
import os
import subprocess

from .net import Failed, last_line
from .tools import row

PEER = os.path.join(os.path.dirname(__file__), "..", "..", "..", "tests", "interop", "peer")
# Emulated processors: a tenth of a second to a few seconds each.
MESSAGES = {64: 4000, 4096: 2000, 65536: 200, 1 << 20: 20}
PORT = 18600
# Packets of our NIC and of rxe go over the same interface; ours is a host of its own there.
OWN = "10.77.0.20{}"


class Guests:
    """Two guests, up until closed."""

    def __init__(self, binaries):
        os.environ["RXE_PEER_NAME"] = f"ferroce-{os.getpid()}-g"
        self.peer("up", "--guests", "2", "--mtu", "4200", patience=300)
        try:
            for guest in ("1", "2"):
                self.peer("put", "-g", guest, f"{binaries}/ferroce", "/root/")
        except BaseException:
            self.close()
            raise
        self.port = PORT

    @staticmethod
    def peer(script, *argv, patience=60):
        try:
            r = subprocess.run([os.path.join(PEER, script), *argv], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"peer/{script}: not done after {patience} s") from None
        if r.returncode:
            raise Failed(f"peer/{script} {' '.join(argv)[:100]}: {last_line(r.stderr or r.stdout)}")
        return r.stdout

    def pair(self, server, client, kind):
        """Runs one command in each guest; returns the row of numbers that the client printed."""
        self.port += 1
        job = self.peer("exec", "-g", "1", "--bg", f"exec {server} -p {self.port}").split()[-1]
        try:
            listening = f"grep -q ':{self.port:04X} .* 0A ' /proc/net/tcp"
            self.peer("exec", "-g", "1", "-t", "30", f"until {listening}; do sleep 0.02; done")
            out = self.peer("exec", "-g", "2", "-t", "60", f"{client} -p {self.port} 10.77.0.1", patience=90)
            return row(out, kind)
        finally:
            try:
                self.peer("exec", "-g", "1", "--kill", job)
            except Failed:
                pass    # it has ended by itself

    def run(self, who, tool, size):
        """One tool; Gbit/s, or microseconds one way."""
        operation, kind = tool.split("-")
        messages = 1000 if kind == "lat" else MESSAGES[size]
        options = f"-F -s {size} -n {messages}" + (" --report_gbits" if kind == "bw" else "")
        if who == "rxe":
            both = [f"ib_{operation}_{kind} -d rxe0 -x 1 {options}"] * 2
        else:
            both = [f"/root/ferroce {tool} --backend packet --dev eth0 --ip {OWN.format(g)}/24 {options}" for g in (1, 2)]
        numbers = self.pair(*both, kind)
        return numbers[4] if kind == "lat" else numbers[3]

    def close(self):
        subprocess.run([os.path.join(PEER, "down")], stdin=subprocess.DEVNULL, capture_output=True)
