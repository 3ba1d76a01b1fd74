"""The tests of perftest against `ferroce send-bw` and its kin: what is run, and what both ends must print."""
import collections
import itertools

# rxe's MTU here, and the largest of the sizes that -a goes through, from 2 on.
MTU = 4096
LARGEST = 1 << 23

# What only our end is told. The tools of perftest 4.5 that wait for events can wait for ever on a busy machine, between
# two rxe as well; a guest that polls shows as well whether ours misses one.
OURS_ONLY = ("-e",)

# How much is run: each tool once, or sizes and options too.
FEW, ALL = range(2)

Test = collections.namedtuple("Test", "tool connection size options")


def iterations(size, connection):
    """Few enough that a guest on an emulated CPU is done in a moment. What UC and UD send fits the queues on its way:
    nobody repeats it."""
    if size is None:
        return 5
    if connection != "RC":
        return 10 if size > MTU else 100
    return 40 if size > MTU else 200


def bandwidth(verb):
    """RC: each size with one and four queue pairs, one way and both ways."""
    tool = f"{verb}_bw"
    sizes = [8] if verb == "atomic" else [2, 65536]
    for size, qps, both in itertools.product(sizes, (1, 4), (False, True)):
        options = (["-q", str(qps)] if qps > 1 else []) + (["-b"] if both else [])
        if qps > 1 and both:
            # With more in flight two rxe do not always survive their own repeats.
            options += ["-t", "8"] if size > MTU else []
        yield Test(tool, "RC", size, options)


def tests(effort):
    if effort == FEW:
        yield from (Test(f"{verb}_{kind}", "RC", 8 if verb == "atomic" else 4096, [])
                    for verb in ("send", "write", "read", "atomic") for kind in ("bw", "lat"))
        return
    for verb in ("send", "write", "read", "atomic"):
        yield from bandwidth(verb)
        sizes = [8] if verb == "atomic" else [2, 4096, 65536]
        yield from (Test(f"{verb}_lat", "RC", size, []) for size in sizes)
    for verb, kind in itertools.product(("send", "write"), ("bw", "lat")):
        yield from (Test(f"{verb}_{kind}", "UC", size, []) for size in (2, 4096, 65536))
    yield from (Test(f"send_{kind}", "UD", size, []) for kind in ("bw", "lat") for size in (2, 4096))
    for connection, size in (("UC", 4096), ("UD", 1024)):
        yield Test("send_bw", connection, size, ["-b"])
        yield Test("send_bw", connection, size, ["-q", "4"])
    yield Test("write_bw", "RC", 65536, ["-m", "1024"])
    yield Test("write_bw", "RC", 65536, ["-m", "256", "-Q", "1", "-t", "16", "--report_gbits"])
    yield Test("send_bw", "RC", 4096, ["-e"])
    yield Test("send_lat", "RC", 64, ["-e"])
    yield Test("write_bw", "RC", 64, ["-I", "64"])
    yield Test("atomic_bw", "RC", 8, ["-A", "CMP_AND_SWAP", "-o", "4"])
    yield Test("read_bw", "RC", 4096, ["-o", "1"])
    yield Test("send_bw", "RC", None, ["-a"])
    yield Test("send_lat", "UD", None, ["-a"])
    yield Test("write_bw", "RC", None, ["-a", "-b"])
    for tool in ("write_bw", "send_lat"):
        yield Test(tool, "RC", 4096, ["-D", "3", "-f", "1"])
    yield Test("send_bw", "RC", 4096, ["-D", "3", "-f", "1", "-b"])


def command(test, port, gid, ours):
    """Options of an end, ours or the guest's."""
    told = [option for option in test.options if ours or option not in OURS_ONLY]
    argv = ["-F", "-p", str(port), "-x", str(gid), "-c", test.connection, *told]
    if test.size is not None and not test.tool.startswith("atomic"):
        argv += ["-s", str(test.size)]
    if test.connection == "RC":
        # An emulated CPU on a busy machine can be silent for longer than perftest's time-outs allow (8 of 67 ms).
        argv += ["-u", "16"]
    if "-D" not in test.options:
        argv += ["-n", str(iterations(test.size, test.connection))]
    return argv


def rows(out):
    """The numbers of the table."""
    lines = iter(out.splitlines())
    for line in lines:
        if line.startswith(" #bytes"):
            break
    table = []
    for line in lines:
        if line.startswith("---"):
            break
        try:
            table.append([float(word) for word in line.split()])
        except ValueError:
            pass    # a warning between two rows
    return table


def expected(test, server):
    """Sizes of the rows that an end prints."""
    if server and test.tool in ("read_lat", "atomic_lat"):
        return []
    if test.size is not None:
        return [test.size]
    largest = MTU if test.connection == "UD" else LARGEST
    sizes = [1 << power for power in range(1, largest.bit_length())]
    told = test.tool in ("write_bw", "read_bw") and "-b" not in test.options
    return sizes[-1:] if server and told else sizes


def complaint(test, client, server):
    """What is wrong with the outputs of both ends; None if nothing is."""
    tables = [rows(client), rows(server)]
    timed, latency = "-D" in test.options, test.tool.endswith("_lat")
    columns = 5 if not latency else 4 if timed else 9
    qps = int(test.options[test.options.index("-q") + 1]) if "-q" in test.options else 1
    count = iterations(test.size, test.connection) * qps
    for name, table, is_server in (("client", tables[0], False), ("server", tables[1], True)):
        if [row[0] for row in table if row] != expected(test, is_server):
            return f"{name} has rows of sizes {[int(row[0]) for row in table if row]}"
        for row in table:
            if len(row) != columns:
                return f"{name} has a row of {len(row)} columns, not {columns}"
            if row[1] < 1 if timed else row[1] != count:
                return f"{name} counts {int(row[1])} messages, not {'any' if timed else count}"
            # With two decimals a few small messages of an emulated CPU may be no bandwidth at all, but have a rate.
            if row[4 if columns == 5 else 2] <= 0:
                return f"{name} measured nothing: {row}"
    # A receiver's clock is its own; else both ends print the same.
    told = not latency and not test.tool.startswith("send")
    if (told or "-b" in test.options and not timed) and tables[0][-1] != tables[1][-1]:
        return f"the ends differ: {tables[0][-1]} and {tables[1][-1]}"
    return None
