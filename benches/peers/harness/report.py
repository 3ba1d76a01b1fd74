"""Samples to medians, ratios and tables."""
import statistics

UNITS = {"gbps": "Gbit/s", "mps": "M/s", "usec": "µs"}


class Samples:
    """Every number measured, by name."""

    def __init__(self):
        self.values, self.units, self.failures = {}, {}, {}

    def add(self, name, unit, value):
        self.units[name] = unit
        self.values.setdefault(name, []).append(value)

    def fail(self, name, reason):
        self.failures.setdefault(name, []).append(reason)

    def median(self, name):
        values = self.values.get(name)
        return statistics.median(values) if values else None

    def ratio(self, name, other):
        a, b = self.median(name), self.median(other)
        return a / b if a is not None and b else None

    def rows(self):
        """Every name with its median, spread and unit."""
        for name, values in self.values.items():
            yield name, statistics.median(values), min(values), max(values), UNITS[self.units[name]]


# What is aimed at: text, whether it is to be at least (+1) or at most (-1), the aim, and the two names whose ratio it is.
# Instead of the first there may be several: the best of them counts, and is named.
AIMS = [
    ("RC WRITE 1 MiB, udp, loopback, against one TCP stream", 1, 1.2, "lo udp WRITE 1 MiB", "lo TCP stream"),
    ("the same over veth", 1, 1.2, "veth udp WRITE 1 MiB", "veth TCP stream"),
    ("RC WRITE 1 MiB against the bare path: udp, loopback", 1, 0.75, "lo udp WRITE 1 MiB", "lo udp bare 4 KiB"),
    ("RC WRITE 1 MiB against the bare path: udp, veth", 1, 0.75, "veth udp WRITE 1 MiB", "veth udp bare 4 KiB"),
    ("RC WRITE 1 MiB against the bare path: packet", 1, 0.75, "veth packet WRITE 1 MiB", "veth packet bare 4 KiB"),
    ("RC WRITE 1 MiB against the bare path: xdp", 1, 0.85, "veth xdp WRITE 1 MiB", "veth xdp bare 4 KiB"),
    ("RC READ 1 MiB against WRITE, udp", 1, 0.9, "lo udp READ 1 MiB", "lo udp WRITE 1 MiB"),
    ("RC SEND 1 MiB against WRITE, udp", 1, 0.9, "lo udp SEND 1 MiB", "lo udp WRITE 1 MiB"),
    ("RC SEND 64 B one way, spinning, against UCX tcp: udp, loopback", -1, 0.8, "lo udp SEND 64 B one way",
     "lo UCX tcp 64 B one way"),
    ("RC SEND 64 B one way, spinning, against UCX tcp: xdp, veth", -1, 0.8, "veth xdp SEND 64 B one way",
     "veth UCX tcp 64 B one way"),
    ("RC SEND 64 B one way against the bare path: udp, loopback", -1, 1.35, "lo udp SEND 64 B one way",
     "lo udp bare 64 B one way"),
    ("RC SEND 64 B one way against the bare path: xdp, veth", -1, 1.35, "veth xdp SEND 64 B one way",
     "veth xdp bare 64 B one way"),
    ("WRITE 64 B, 16 QPs, messages against bare packets: xdp", 1, 0.6, "veth xdp WRITE 64 B 16 QPs",
     "veth xdp bare 64 B"),
    ("between two guests, WRITE 64 KiB against rxe", 1, 2.0,
     ("guests ferroce udp WRITE 64 KiB", "guests ferroce packet WRITE 64 KiB"), "guests rxe WRITE 64 KiB"),
    ("between two guests, SEND 64 B one way against rxe", -1, 0.6,
     ("guests ferroce udp SEND 64 B one way", "guests ferroce packet SEND 64 B one way"), "guests rxe SEND 64 B one way"),
    ("throughput with 10,000 active QPs against 16, udp", 1, 0.8, "lo udp WRITE 4 KiB 10000 QPs",
     "lo udp WRITE 4 KiB 16 QPs"),
    ("throughput under 0.1 % loss against none, udp", 1, 0.5, "lo udp WRITE 1 MiB 0.1 % loss", "lo udp WRITE 1 MiB"),
]


def alternatives(name):
    return name if isinstance(name, tuple) else (name,)


def names_of_aims():
    """Every name that some aim compares."""
    return {name for *_, names, other in AIMS for name in (*alternatives(names), other)}


def aims(samples):
    """The aims whose numbers are there, with their ratios."""
    for text, sign, aim, names, other in AIMS:
        ratios = {name: samples.ratio(name, other) for name in alternatives(names)}
        found = [(sign * ratio, name) for name, ratio in ratios.items() if ratio is not None]
        if found:
            _, best = max(found)
            ratio = ratios[best]
            what = f"{text} ({best})" if len(ratios) > 1 else text
            yield {"what": what, "aim": aim, "at_least": sign > 0, "ratio": ratio, "met": sign * ratio >= sign * aim}


def markdown(samples):
    lines = ["| what | median | lowest | highest | unit |", "|---|---|---|---|---|"]
    for name, median, low, high, unit in samples.rows():
        lines.append(f"| {name} | {median:.4g} | {low:.4g} | {high:.4g} | {unit} |")
    found = list(aims(samples))
    if found:
        lines += ["", "| aim | wanted | ratio of medians | |", "|---|---|---|---|"]
    for aim in found:
        sign, met = "≥" if aim["at_least"] else "≤", "met" if aim["met"] else "**not met**"
        lines.append(f"| {aim['what']} | {sign} {aim['aim']} | {aim['ratio']:.2f} | {met} |")
    for name, reasons in samples.failures.items():
        lines.append(f"\n{name}: {len(reasons)} run(s) without a number: {reasons[-1]}")
    return "\n".join(lines)
