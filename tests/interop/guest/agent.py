#!/usr/bin/python3
"""agent.py ADDRESS PORT: libibverbs by remote control, inside a guest.

One TCP connection drives the guest's rxe0 through a whole test run, so that python starts
once; each has a process of its own. Each request is a JSON line {"do": NAME, ...}, each answer a JSON line with the
result, {"error": TEXT}, or {"unsupported": TEXT} where the device lacks the operation.
The cases themselves live at the other end, in ../../src/bin/rcase. What a connection
opened goes when it ends."""
import errno
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 8 << 20
DEPTH = 256
KINDS = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
QKEY = 0x11111111
RIGHTS = {"write": e.IBV_ACCESS_REMOTE_WRITE, "read": e.IBV_ACCESS_REMOTE_READ,
          "atomic": e.IBV_ACCESS_REMOTE_ATOMIC}
ALL = e.IBV_ACCESS_LOCAL_WRITE | sum(RIGHTS.values())
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024,
        2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
OPS = {"SEND": e.IBV_WR_SEND, "SEND_WITH_IMM": e.IBV_WR_SEND_WITH_IMM,
       "RDMA_WRITE": e.IBV_WR_RDMA_WRITE, "RDMA_WRITE_WITH_IMM": e.IBV_WR_RDMA_WRITE_WITH_IMM,
       "RDMA_READ": e.IBV_WR_RDMA_READ, "CMP_SWAP": e.IBV_WR_ATOMIC_CMP_AND_SWP,
       "FETCH_ADD": e.IBV_WR_ATOMIC_FETCH_AND_ADD, "SEND_WITH_INV": e.IBV_WR_SEND_WITH_INV}
FLAGS = {"signaled": e.IBV_SEND_SIGNALED, "solicited": e.IBV_SEND_SOLICITED,
         "fence": e.IBV_SEND_FENCE, "inline": e.IBV_SEND_INLINE}

# rxe of Linux 6.1 marks an invalidation as the kernel does among itself (4), not as verbs say.
INVALIDATED = e.IBV_WC_WITH_INV | 4

# Byte i of a pattern is 7 i + 13 (i >> 8) + seed, modulo 256: it repeats after 64 KiB only.
BASE = bytes((i * 7 + (i >> 8) * 13) & 0xff for i in range(1 << 16))
SHIFT = [bytes((b + s) & 0xff for b in range(256)) for s in range(256)]


def pattern(n, seed, skip=0):
    """Bytes skip to skip + n of the pattern of this seed."""
    at = skip % len(BASE)
    laps = (at + n) // len(BASE) + 1
    return (BASE * laps)[at:at + n].translate(SHIFT[seed & 0xff])


class Agent:
    def __init__(self):
        self.ctx = Context(name="rxe0")
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, SIZE, ALL | e.IBV_ACCESS_MW_BIND)
        self.qp = self.cq = self.ah = self.mw = None
        self.children = {}

    # --- memory ---
    def fill(self, off, len, seed, skip=0):
        self.mr.write(pattern(len, seed, skip), len, off)

    def matches(self, off, len, seed, skip=0):
        """Whether the region holds the pattern; else the first place that differs."""
        got, want = self.mr.read(len, off), pattern(len, seed, skip)
        if got == want:
            return {"same": True}
        return {"same": False, "at": next(i for i in range(len) if got[i] != want[i])}

    def put(self, off, hex):
        data = bytes.fromhex(hex)
        self.mr.write(data, len(data), off)

    def get(self, off, len):
        return {"hex": self.mr.read(len, off).hex()}

    # --- the queue pair; one at a time ---
    def open(self, kind, psn, gid, rights):
        self.close()
        self.cq = CQ(self.ctx, 2 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4, max_inline_data=64)
        self.qp = QP(self.pd, QPInitAttr(qp_type=KINDS[kind], scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        self.kind, self.psn, self.gid = kind, psn, gid
        at = QPAttr(port_num=1)
        at.qkey = QKEY
        at.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | sum(RIGHTS[r] for r in rights)
        self.qp.to_init(at)
        return {"qpn": self.qp.qp_num, "psn": psn, "gid": str(self.ctx.query_gid(1, gid)),
                "rkey": self.mr.rkey, "addr": self.mr.buf, "size": SIZE}

    def connect(self, qpn, psn, gid, mtu, timeout, retry_cnt, rnr_retry, min_rnr_timer, rd_atomic):
        at = QPAttr(port_num=1)
        gr = GlobalRoute(dgid=GID(ipaddress.IPv6Address(gid).exploded), sgid_index=self.gid)
        gr.hop_limit = 64
        at.ah_attr = way = AHAttr(gr=gr, is_global=1, port_num=1, sl=0)
        if self.kind == "ud":
            self.ah, self.peer = AH(self.pd, attr=way), qpn
        at.path_mtu, at.dest_qp_num, at.rq_psn = MTUS[mtu], qpn, psn
        at.min_rnr_timer, at.max_dest_rd_atomic = min_rnr_timer, rd_atomic
        at.qp_access_flags = 0
        self.qp.to_rtr(at)
        at.sq_psn, at.timeout, at.retry_cnt, at.rnr_retry = self.psn, timeout, retry_cnt, rnr_retry
        at.max_rd_atomic = rd_atomic
        self.qp.to_rts(at)

    def close(self):
        for o in (self.mw, self.qp, self.cq, self.ah):
            if o is not None:
                o.close()
        self.qp = self.cq = self.ah = self.mw = None

    def sge(self, pieces):
        return [SGE(self.mr.buf + off, n, self.mr.lkey) for off, n in pieces]

    def post_send(self, wrs):
        for w in wrs:
            sg = self.sge(w["sge"])
            kw = dict(wr_id=w["id"], opcode=OPS[w["op"]], num_sge=len(sg), sg=sg,
                      send_flags=sum(FLAGS[f] for f in w["flags"]))
            if w.get("imm") is not None:
                kw["imm_data"] = socket.htonl(w["imm"])
            if w["op"] == "SEND_WITH_INV":
                kw["imm_data"] = w["rkey"]      # the same place in the structure
            wr = SendWR(**kw)
            if w["op"] == "SEND_WITH_INV":
                pass
            elif w["op"] in ("CMP_SWAP", "FETCH_ADD"):
                wr.set_wr_atomic(w["rkey"], w["addr"], w["compare_add"], w["swap"])
            elif w.get("rkey") is not None:
                wr.set_wr_rdma(w["rkey"], w["addr"])
            if self.ah is not None:
                wr.set_wr_ud(self.ah, self.peer, QKEY)
            self.qp.post_send(wr)

    def post_recv(self, wrs):
        for w in wrs:
            sg = self.sge(w["sge"] or [(0, 0)])     # pyverbs wants one piece at least
            self.qp.post_recv(RecvWR(wr_id=w["id"], num_sge=len(sg), sg=sg))

    def poll(self, n, seconds):
        """Up to n completions, waiting for them at most this long."""
        out, end = [], time.monotonic() + seconds
        while True:
            k, wcs = self.cq.poll(n - len(out))
            out += [{"id": w.wr_id, "status": w.status, "opcode": w.opcode, "len": w.byte_len,
                     "imm": socket.ntohl(w.imm_data) if w.wc_flags & e.IBV_WC_WITH_IMM else None,
                     "inv": w.imm_data if w.wc_flags & INVALIDATED else None} for w in wcs[:k]]
            if len(out) >= n or time.monotonic() >= end:
                return {"wcs": out}
            if not k:
                time.sleep(0.0003)

    # --- keys ---
    def bind(self, off, len):
        """Binds a type 2 window to part of the region, for the peer to read and write. A new one each time: what
        pyverbs knows of a window's key is only its first."""
        if self.mw is not None:
            self.mw.close()
        self.mw = MW(self.pd, e.IBV_MW_TYPE_2)
        key = (self.mw.rkey & ~0xff) | ((self.mw.rkey + 1) & 0xff)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None, send_flags=e.IBV_SEND_SIGNALED)
        info = MWBindInfo(self.mr, self.mr.buf + off, len, e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
        wr.set_bind_wr(self.mw, info)
        self.does(wr)
        return {"rkey": key}

    def invalidate(self, rkey):
        self.does(SendWR(opcode=e.IBV_WR_LOCAL_INV, num_sge=0, sg=None, imm_data=rkey,
                         send_flags=e.IBV_SEND_SIGNALED))

    def does(self, wr):
        self.qp.post_send(wr)
        wcs = self.poll(1, 5)["wcs"]
        if not wcs or wcs[0]["status"]:
            raise RuntimeError(f"work on a key: {wcs}")

    def has(self, op):
        """Whether the device has ATOMIC_WRITE or FLUSH, which the guest's Linux knows nothing of."""
        return {"has": False}

    # --- programs, such as ibv_rc_pingpong ---
    def run(self, argv, listen=None):
        """Starts a program; with listen, waits until it accepts on that TCP port."""
        log = f"/tmp/run.{len(self.children)}"
        with open(log, "wb") as f:
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)
        self.children[p.pid] = (p, log)
        while listen is not None and p.poll() is None and not listening(listen):
            time.sleep(0.002)
        return {"pid": p.pid}

    def wait(self, pid, seconds):
        """The program's exit status (null: ended here for taking too long) and its output."""
        p, log = self.children[pid]
        try:
            rc = p.wait(seconds)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGKILL)
            p.wait()
            rc = None
        with open(log, errors="replace") as f:
            out = f.read()
        del self.children[pid]
        os.unlink(log)
        return {"rc": rc, "out": out}

    def counters(self):
        d = "/sys/class/infiniband/rxe0/ports/1/hw_counters/"
        return {n: int(open(d + n).read()) for n in sorted(os.listdir(d)) if n != "lifespan"}

    def hello(self):
        return {"device": "rxe0", "kernel": os.uname().release}

    def end(self):
        self.close()
        for p, _ in self.children.values():
            p.kill()
            p.wait()
        self.mr.close()
        self.pd.close()
        self.ctx.close()


def listening(port):
    want = f":{port:04X} "
    for line in open("/proc/net/tcp"):
        f = line.split()
        if f[3] == "0A" and f[1].endswith(want.strip()):
            return True
    return False


DO = ("hello", "fill", "matches", "put", "get", "open", "connect", "close", "post_send", "post_recv", "poll",
      "bind", "invalidate", "has", "run", "wait", "counters")


def serve(s):
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    agent = Agent()
    try:
        for line in s.makefile("r"):
            req = json.loads(line)
            name = req.pop("do")
            try:
                if name not in DO:
                    raise ValueError(f"no such request: {name}")
                answer = getattr(agent, name)(**req) or {}
            except PyverbsRDMAError as x:
                lacking = x.error_code in (errno.EOPNOTSUPP, errno.ENOSYS)
                answer = {"unsupported" if lacking else "error": f"{name}: {x}"}
            except Exception as x:  # whatever it is, the other end must hear of it
                answer = {"error": f"{name}: {type(x).__name__}: {x}"}
            s.sendall(json.dumps(answer).encode() + b"\n")
    except OSError as x:
        print("agent: connection lost:", x, flush=True)
    agent.end()


def main():
    lst = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=8)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        s, _ = lst.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lst.close()
            serve(s)
            os._exit(0)
        s.close()


main()
