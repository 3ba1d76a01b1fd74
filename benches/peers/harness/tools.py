"""The programs that are compared, each as a function from two places to one number."""
import json
import shutil

from .net import Failed, run_pair

NUMBERS = {"bw": 5, "lat": 9}
# Messages of one run, so that it lasts about a second on the faster paths.
MESSAGES = {64: 400_000, 4096: 200_000, 65536: 24_000, 1 << 20: 2000}
PORTS = iter(range(20000, 60000))


def found(program):
    return shutil.which(program) is not None


def row(out, kind):
    """The last row of numbers of a table of perftest or of ours."""
    for line in reversed(out.splitlines()):
        field = line.split()
        if len(field) == NUMBERS[kind] and field[0].isdigit():
            return [float(x) for x in field]
    raise Failed("no row of results")


def iperf3(server, client):
    """One TCP stream, Gbit/s."""
    port = next(PORTS)
    out = run_pair(server, client, ["iperf3", "-s", "-1", "-p", str(port)],
                   ["iperf3", "-c", server.address, "-p", str(port), "-t", "1", "-J"], port)
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 1e9


def ucx(server, client, kind, size):
    """UCX over TCP: Gbit/s of tagged messages, or the time of one way in microseconds."""
    port = next(PORTS)
    env = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": client.dev}
    count = 20_000 if kind == "lat" else MESSAGES[size] // 2
    out = run_pair(server, client, ["ucx_perftest", "-p", str(port)],
                   ["ucx_perftest", server.address, "-p", str(port), "-t", f"tag_{kind}", "-s", str(size), "-n",
                    str(count), "-f", "-v"], port, env)
    keys, values = (line.split(",") for line in out.splitlines()[-2:])
    result = dict(zip(keys, map(float, values)))
    return result["50.0_percentile_lat"] if kind == "lat" else result["overall_bw"] * 2**20 * 8 / 1e9


def fi_pingpong(server, client, kind, size):
    """libfabric over TCP, one message at a time each way: Gbit/s, or the time of one way in microseconds."""
    port = next(PORTS)
    count = str(20_000 if size < 65536 else 1000)
    both = ["fi_pingpong", "-p", "tcp", "-e", "msg", "-S", str(size), "-I", count]
    out = run_pair(server, client, [*both, "-B", str(port)], [*both, "-P", str(port), server.address], port)
    keys, values = (line.split() for line in out.splitlines()[-2:])
    result = dict(zip(keys, values))
    return float(result["usec/xfer"]) if kind == "lat" else float(result["MB/sec"]) * 8 / 1000


def fi_rma_bw(server, client, size):
    """libfabric's WRITEs over TCP, Gbit/s."""
    port = next(PORTS)
    both = ["fi_rma_bw", "-p", "tcp", "-e", "msg", "-o", "write", "-S", str(size)]
    out = run_pair(server, client, [*both, "-B", str(port)], [*both, "-P", str(port), server.address], port)
    keys, values = (line.split() for line in out.splitlines()[-2:])
    return float(dict(zip(keys, values))["MB/sec"]) * 8 / 1000


class Ferroce:
    """Our commands and the bare path, built before."""

    def __init__(self, binaries, quick):
        self.binaries, self.quick = binaries, quick

    @staticmethod
    def device(backend, place):
        dev = ["--dev", place.dev] if backend in ("packet", "xdp") else ["--bind", place.address]
        return ["--backend", backend, *dev]

    def run(self, server, client, backend, tool, size, qps=1, messages=None, lossy=()):
        """One of our commands. `bw` gives Gbit/s (of 64 bytes: millions of messages a second), `lat` microseconds."""
        port, kind = str(next(PORTS)), tool.rsplit("-", 1)[1]
        count = messages or (20_000 if kind == "lat" else MESSAGES[size] // qps)
        if self.quick:
            count //= 10
        # With one send open at a time, as is the default, a message would also wait for the ACK of the one before, which
        # no other tool here has.
        more = ("-t", "128") if tool == "send-lat" else ()
        options = ["-p", port, "-s", str(size), "-n", str(max(count, 5)), "-F", *more]
        if kind == "bw":
            options += ["-q", str(qps), "--report_gbits"]
        if self.quick:
            options += ["--verify"]
        program = f"{self.binaries}/ferroce"
        out = run_pair(server, client, [program, tool, *self.device(backend, server), *options],
                       [program, tool, *self.device(backend, client), *options, *lossy, server.address], int(port))
        numbers = row(out, kind)
        if kind == "lat":
            return numbers[4]
        return numbers[4] if size == 64 else numbers[3]

    def ceiling(self, server, client, backend, payload, echo=False):
        """The path without an engine: Gbit/s (of 64 bytes: millions of packets a second), or microseconds one way."""
        def argv(own, other):
            dev = ["--dev", own.dev] if backend in ("packet", "xdp") else []
            return [f"{self.binaries}/ceiling", "--backend", backend, "--bind", own.address, "--peer", other.address,
                    "--payload", str(payload), *dev, *(["--echo"] if echo else [])]
        out = run_pair(server, client, [*argv(server, client), "--receive"], argv(client, server))
        result = json.loads(out)
        return result["usec"] if echo else result["mpps" if payload == 64 else "gbps"]
