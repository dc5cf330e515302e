#!/usr/bin/env python3
"""Shows on real servers that a tenant can not learn from time what another tenant has asked.

    bench/tenant_timing.py --start build/cofferdam            starts a server with keys of its own, and stops it
    bench/tenant_timing.py --port 8000 --keys FILE            asks a running server; FILE has a key a line, as --api-key-file

Part 1, time to the first token: in every trial tenant A asks a new prompt, then tenant B asks either the same one (a hit, if
anything were shared) or a new one (a miss), then A asks its own again, which must be found: its pages were there all the time.
Part 2, order under load: after A's prompt, B sends A's prompt and a new one at the same moment over two connections, while a
third tenant keeps the server busy. Which connection has which, and which is written first, is drawn.

Trials in which A takes B's place are mixed in. They show how large the gap is that sharing makes, and that these tests find it.
Between tenants the tests must find nothing at 1e-4, the 90% interval of the difference must lie within a tenth of that gap, and B must
be told that nothing was cached. The exit status is 0 only when every line says so.
"""
import argparse
import gc
import json
import math
import multiprocessing
import os
import pathlib
import random
import re
import secrets
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import timing_stats as stats

ALPHA = 1e-4
MARGIN = 0.1  # of the gap within one tenant
KEYS_VARIABLE = "COFFERDAM_TENANT_KEYS"


class Stream:
    """A connection that stays open, and one streamed answer at a time. Own sockets, so that one selector sees two of them."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=300)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request):
        self.bytes, self.first = bytearray(), None
        self.sent = time.perf_counter_ns()
        self.socket.sendall(request)

    def receive(self):
        """Takes what has arrived; true at the answer's end."""
        part = self.socket.recv(1 << 16)
        now = time.perf_counter_ns()
        self.bytes += part
        if self.first is None and b"data: {" in self.bytes:
            self.first = now
        if not part or (b"\r\n\r\n" in self.bytes and not self.bytes.startswith(b"HTTP/1.1 200 ")):
            raise SystemExit(f"not an answer: {self.bytes.decode(errors='replace')[:1000]}")
        return self.bytes.endswith(b"\r\n0\r\n\r\n")

    def ask(self, request):
        """Nanoseconds to the first token, and the cached tokens that the server tells of."""
        self.send(request)
        while not self.receive():
            pass
        return self.first - self.sent, self.cached()

    def cached(self):
        text = re.sub(rb"\r\n[0-9a-fA-F]+\r\n", b"", bytes(self.bytes.partition(b"\r\n\r\n")[2]))  # without chunk sizes
        found = re.search(rb'"cached_tokens": ?(\d+)', text)
        if b'"error"' in text or self.first is None or found is None:
            raise SystemExit(f"no token, or no cached_tokens (is --hide-cached-tokens on?): {text.decode(errors='replace')[-500:]}")
        return int(found.group(1))


def request_bytes(key, prompt, max_tokens=1):
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
    return (f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


def new_prompt(draw, tokens, vocabulary):
    """Token ids at random: no two prompts share a page. One length for all, so that only the contents differ."""
    return [draw.randrange(100, vocabulary) for _ in range(tokens)]


class Record:
    """What was measured in one part: samples by tenant (`same`: A itself, `other`: B) and kind, and the counts of the cache."""

    def __init__(self, kinds):
        self.samples = {who: {kind: [] for kind in kinds} for who in ("same", "other")}
        self.trials = 0
        self.found_again = 0  # trials in which A found its own prompt again after B
        self.probes = {"same hit": 0, "same miss": 0, "other hit": 0, "other miss": 0}
        self.found = dict.fromkeys(self.probes, 0)  # probes that found anything

    def probe(self, who, kind, cached):
        self.probes[f"{who} {kind}"] += 1
        self.found[f"{who} {kind}"] += cached > 0

    def cache_is_right(self):
        return (self.found_again == self.trials and self.found["same hit"] == self.probes["same hit"]
                and self.found["same miss"] == self.found["other hit"] == self.found["other miss"] == 0)


def schedule(draw, kinds, trials, control):
    """Trials of both kinds and both tenants in one shuffled row, so that drift meets all of them alike."""
    row = [(who, kind) for who, count in (("other", trials), ("same", control)) for kind in kinds for _ in range(count)]
    draw.shuffle(row)
    return row


def progress(name, number, total):
    if number % 25 == 0 or number == total:
        print(f"\r{name}: {number} of {total} trials", end="\n" if number == total else "", file=sys.stderr, flush=True)


def measure_first_token(options, keys, address, draw):
    """Part 1. A's own connection and the prober's are the same in all trials; only the key and the prompt differ."""
    owner, prober = Stream(address), Stream(address)
    record = Record(("hit", "miss"))
    row = schedule(draw, ("hit", "miss"), options.trials, options.control)
    row = draw.choices(row, k=options.warm_up) + row
    for number, (who, kind) in enumerate(row, start=1 - options.warm_up):
        asked, fresh = (new_prompt(draw, options.tokens, options.vocabulary) for _ in range(2))
        own = request_bytes(keys["A"], asked)
        probe = request_bytes(keys["A" if who == "same" else "B"], asked if kind == "hit" else fresh)
        if owner.ask(own)[1] != 0:
            raise SystemExit("a new prompt was found in the cache: was this seed used before on this server?")
        nanoseconds, cached = prober.ask(probe)
        again = owner.ask(own)[1]
        if number > 0:
            record.trials += 1
            record.samples[who][kind].append(nanoseconds / 1e6)
            record.probe(who, kind, cached)
            record.found_again += again > 0
            progress("first token", number, len(row) - options.warm_up)
    return record


def ask_both(first, second, selector):
    """Writes two prepared requests at once and reads both answers. epoll names connections in the order of arrival."""
    for stream, request in (first, second):
        stream.send(request)
    open_streams = 2
    while open_streams > 0:
        for ready, _ in selector.select():
            open_streams -= ready.data.receive()


def measure_order(options, keys, address, draw):
    """Part 2. A sample is how much later the token of the request came that was written second; below 0 it came first."""
    owner, pair = Stream(address), [Stream(address), Stream(address)]
    selector = selectors.EpollSelector()
    for stream in pair:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    record = Record(("hit ahead", "miss ahead"))
    row = schedule(draw, ("hit ahead", "miss ahead"), options.pairs // 2, options.control // 2)
    row = draw.choices(row, k=options.warm_up) + row
    for number, (who, kind) in enumerate(row, start=1 - options.warm_up):
        asked, fresh = (new_prompt(draw, options.pair_tokens, options.vocabulary) for _ in range(2))
        own, key = request_bytes(keys["A"], asked), keys["A" if who == "same" else "B"]
        hit, miss = draw.sample(pair, 2)
        written = [(hit, request_bytes(key, asked)), (miss, request_bytes(key, fresh))]
        if kind == "miss ahead":
            written.reverse()
        if owner.ask(own)[1] != 0:
            raise SystemExit("a new prompt was found in the cache: was this seed used before on this server?")
        ask_both(*written, selector)
        again = owner.ask(own)[1]
        if number > 0:
            record.trials += 1
            record.samples[who][kind].append((written[1][0].first - written[0][0].first) / 1e6)
            record.probe(who, "hit", hit.cached())
            record.probe(who, "miss", miss.cached())
            record.found_again += again > 0
            progress("order under load", number, len(row) - options.warm_up)
    return record


def load(address, key, seed, vocabulary):
    """One client of the load, until it is ended: prompts and answers of mixed lengths, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    draw, stream = random.Random(seed), Stream(address)
    while True:
        prompt = new_prompt(draw, draw.randrange(64, 512), vocabulary)
        stream.ask(request_bytes(key, prompt, draw.randrange(8, 33)))


def under_load(options, keys, address, draw):
    clients = [multiprocessing.Process(target=load, args=(address, keys["load"], draw.random(), options.vocabulary), daemon=True)
               for _ in range(options.load)]
    for client in clients:
        client.start()
    try:
        record = measure_order(options, keys, address, draw)
        if not all(client.is_alive() for client in clients):
            raise SystemExit("a client of the load failed")
        return record
    finally:
        for client in clients:
            client.terminate()
            client.join()


class Verdicts:
    def __init__(self):
        self.rows = []

    def add(self, what, figures, good, verdict=None):
        self.rows.append({"what": what, "figures": figures, "good": good, "verdict": verdict or ("yes" if good else "NO")})

    def found(self, what, figures, p):
        self.add(what, f"{figures}, p {p:.1e}", p < ALPHA, "found" if p < ALPHA else "NOT FOUND")

    def nothing(self, what, figures, p):
        self.add(what, f"{figures}, p {p:.2g}", p >= ALPHA, "nothing" if p >= ALPHA else "FOUND: A LEAK")

    def same(self, what, interval, margin, unit):
        estimate, low, high = interval
        verdict = stats.judge_same((low, high), margin)
        self.add(what, f"{estimate:+.3f} [{low:+.3f}, {high:+.3f}] of ±{margin:.3f} {unit}", verdict == "same",
                 {"same": "same", "differs": "DIFFERS", "undecided": "UNDECIDED: more trials"}[verdict])

    def cache(self, what, record):
        figures = "; ".join(f"{name} {record.found[name]} of {count}" for name, count in record.probes.items())
        self.add(what, f"A again {record.found_again} of {record.trials}; {figures}", record.cache_is_right())

    def show(self):
        width, middle = (max(len(row[column]) for row in self.rows) for column in ("what", "figures"))
        for row in self.rows:
            print(f"{row['what']:{width}}  {row['figures']:{middle}}  {row['verdict']}")
        return all(row["good"] for row in self.rows)


def judge_first_token(record, verdicts):
    same, other = record.samples["same"], record.samples["other"]
    medians = {who: (statistics.median(times["hit"]), statistics.median(times["miss"])) for who, times in record.samples.items()}
    d, p = stats.smirnov(same["hit"], same["miss"])
    gap = medians["same"][1] - medians["same"][0]
    verdicts.found("first token, one tenant: hits sooner",
                   f"hit {medians['same'][0]:.2f} ms, miss {medians['same'][1]:.2f} ms, gap {gap:.2f} ms, D {d:.3f}", p)
    d, p = stats.smirnov(other["hit"], other["miss"])
    verdicts.nothing("first token, two tenants: hits sooner",
                     f"hit {medians['other'][0]:.2f} ms, miss {medians['other'][1]:.2f} ms, D {d:.3f}", p)
    d, p = stats.smirnov(other["miss"], other["hit"])
    verdicts.nothing("first token, two tenants: hits later", f"D {d:.3f}", p)
    verdicts.same("first token, two tenants: shift within gap/10", stats.shift(other["hit"], other["miss"]), gap * MARGIN, "ms")
    verdicts.cache("first token: found in the cache", record)


def order_of(samples):
    """Wins of hits of both halves, and all pairs; the lead of hits in ms with its interval."""
    ahead, behind = samples["hit ahead"], samples["miss ahead"]
    wins = [sum(lag > 0 for lag in ahead), len(ahead), sum(lag < 0 for lag in behind), len(behind)]
    # A hit that leads makes the lag longer where it was written first, and shorter where second: twice the lead in all.
    return wins, tuple(value / 2 for value in stats.shift(behind, ahead))


def judge_order(record, verdicts):
    wins, gap_lead = order_of(record.samples["same"])
    hits, pairs = wins[0] + wins[2], wins[1] + wins[3]
    gap = hits / pairs - 0.5
    verdicts.found("order under load, one tenant: hits first", f"{hits} of {pairs}, ahead by {gap_lead[0]:.2f} ms",
                   stats.wins_at_least(hits, pairs))
    wins, lead = order_of(record.samples["other"])
    hits, pairs = wins[0] + wins[2], wins[1] + wins[3]
    verdicts.nothing("order under load, two tenants: hits first",
                     f"{hits} of {pairs} ({wins[0]} of {wins[1]} written first, {wins[2]} of {wins[3]} second)",
                     stats.wins_at_least(hits, pairs))
    verdicts.nothing("order under load, two tenants: hits last", f"{pairs - hits} of {pairs}", stats.wins_at_least(pairs - hits, pairs))
    verdicts.same("order under load, two tenants: P - 1/2 within gap/10", stats.advantage(*wins), gap * MARGIN, "")
    verdicts.same("order under load, two tenants: lead within gap/10", lead, gap_lead[0] * MARGIN, "ms")
    verdicts.cache("order under load: found in the cache", record)


class Server:
    """`cofferdam up` on a free port of loopback, with three random keys, as long as the block lasts."""

    def __init__(self, binary, arguments, tokens):
        self.folder = tempfile.TemporaryDirectory(prefix="tenant-timing-")  # mode 0700
        self.keys = ["sk-" + secrets.token_hex(16) for _ in range(3)]
        path = pathlib.Path(self.folder.name)
        (path / "keys").write_text("\n".join(self.keys) + "\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        if not any(argument.startswith("--kv-tokens") for argument in arguments):  # room for some trials, so that a prompt stays for its own
            arguments = [*arguments, "--kv-tokens", str(64 * math.ceil(tokens / 128) * 128)]
        self.log = (path / "log").open("w+")
        self.process = subprocess.Popen([binary, "up", "--port", str(self.port), "--api-key-file", str(path / "keys"), "--tenure-log",
                                         str(path / "tenures"), *arguments], stdout=self.log, stderr=self.log, start_new_session=True)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.log.seek(0)
        last = self.log.read()[-3000:]
        self.__exit__()
        raise SystemExit(f"the server was not ready; it said last:\n{last}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        self.folder.cleanup()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--start", metavar="COFFERDAM", help="binary to start; what stands after -- goes to `cofferdam up`, as in -- --model FILE")
    add("--host", default="127.0.0.1", help="of a running server")
    add("--port", type=int, default=8000, help="of a running server")
    add("--keys", metavar="FILE", help="keys of a running server, one a line: tenant A, tenant B, and one for the load (else A's). "
        f"Without it they come from the environment: {KEYS_VARIABLE}, between spaces")
    add("--trials", type=int, default=250, help="hits between tenants, and as many misses (250)")
    add("--tokens", type=int, default=1024, help="of a prompt whose first token is timed (1024)")
    add("--pairs", type=int, default=1000, help="between tenants under load (1000): a tenth of the gap is 0.05 at most, and 250 pairs "
        "would leave ±0.05 where chance decides their order")
    add("--pair-tokens", type=int, default=512, help="of a prompt of a pair (512)")
    add("--control", type=int, default=100, help="hits, misses, and pairs of one tenant (100)")
    add("--load", type=int, default=2, help="requests of the load at a time (2)")
    add("--warm-up", type=int, default=10, help="trials of each part that do not count (10)")
    add("--vocabulary", type=int, default=700, help="token ids are drawn from 100 to this (700)")
    add("--seed", type=int, help="of prompts and order; drawn when not given. A running server must not have seen it before")
    add("--one-key", action="store_true", help="B uses A's key: a trial of this tool, which must then fail")
    add("--json", metavar="FILE", help="writes all samples and verdicts")
    add("up", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.trials, options.pairs, options.control) < 10 or options.load < 0 or options.warm_up < 0:
        parser.error("at least 10 trials, pairs and controls")
    if options.up and not options.start:
        parser.error("arguments of `cofferdam up` need --start")
    if options.seed is None:
        options.seed = secrets.randbelow(1 << 32)
    return options


def keys_of(options):
    text = pathlib.Path(options.keys).read_text() if options.keys else os.environ.get(KEYS_VARIABLE, "").replace(" ", "\n")
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if len(keys) < 2:
        raise SystemExit(f"two keys are needed, in --keys FILE or {KEYS_VARIABLE}; --start makes its own")
    return keys


def measure(options, keys, address):
    keys = {"A": keys[0], "B": keys[0 if options.one_key else 1], "load": keys[2 if len(keys) > 2 else 0]}
    draw = random.Random(options.seed)
    gc.disable()  # no pause of ours within a sample
    first_token = measure_first_token(options, keys, address, draw)
    order = under_load(options, keys, address, draw)
    gc.enable()
    verdicts = Verdicts()
    judge_first_token(first_token, verdicts)
    judge_order(order, verdicts)
    print(f"seed {options.seed}; {options.trials} hits and {options.trials} misses of {options.tokens} tokens, "
          f"{options.pairs // 2 * 2} pairs of {options.pair_tokens} under {options.load} requests of load")
    good = verdicts.show()
    if options.json:
        report = {"options": vars(options), "verdicts": verdicts.rows, "good": good,
                  "first_token_ms": first_token.samples, "lag_of_second_ms": order.samples}
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return good


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server that was started goes, too
    if options.start:
        with Server(options.start, options.up, max(options.tokens, options.pair_tokens)) as server:
            good = measure(options, server.keys, ("127.0.0.1", server.port))
    else:
        good = measure(options, keys_of(options), (options.host, options.port))
    print("a tenant learns nothing from time" if good else "NOT shown: see the lines above")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
