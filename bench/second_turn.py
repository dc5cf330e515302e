#!/usr/bin/env python3
"""How much sooner the first token of a conversation's next turn comes when its earlier turns lie in the prefix cache.

Against a running server, pair by pair: a first turn of --tokens tokens (computed whole), then the next turn, --more tokens
longer; and the same next turn once more under a cache_salt of its own, which finds nothing. Prints the medians of the time to the
first token, and the ratio of the pairs with its 95% interval.

    scripts/up --port 8000 &
    bench/second_turn.py --port 8000 --tokens 2000 --pairs 20

With --first-port the first turn goes to another server: the workers behind --port have never seen the conversation and must pull
its pages from there (--pull-from).
"""
import argparse
import http.client
import json
import random
import statistics
import time


def first_token_seconds(connection, prompt, salt):
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True, "cache_salt": salt,
            "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read().decode()}")
    first, cached = None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.perf_counter() - start
        usage = json.loads(line[6:]).get("usage") or {}
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", cached)
    response.read()
    return first, cached


def interval(values, rounds=4000):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--first-port", type=int, help="of the server that gets the first turns (default: the same)")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--more", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=700, help="token ids are drawn from 100 to this")
    options = parser.parse_args()
    connection = http.client.HTTPConnection(options.host, options.port, timeout=600)
    first_connection = connection
    if options.first_port is not None:
        first_connection = http.client.HTTPConnection(options.host, options.first_port, timeout=600)
    draw = random.Random(7)
    run = random.SystemRandom().randrange(1 << 60)  # what an earlier run left is not found
    warm, cold, ratios, hits = [], [], [], []
    for pair in range(options.pairs + 1):  # the first warms up
        prompt = [draw.randrange(100, options.vocabulary) for _ in range(options.tokens + options.more)]
        first_token_seconds(first_connection, prompt[:options.tokens], f"{run}-{pair}")
        arms = [("warm", f"{run}-{pair}"), ("cold", f"{run}-{pair}-cold")]
        if pair % 2 == 1:
            arms.reverse()
        times = {}
        for name, salt in arms:
            times[name], cached = first_token_seconds(connection, prompt, salt)
            if name == "warm":
                hits.append(cached)
            elif cached != 0:
                raise SystemExit("a prompt under a new salt was found in the cache")
        if pair > 0:
            warm.append(times["warm"])
            cold.append(times["cold"])
            ratios.append(times["cold"] / times["warm"])
    low, high = interval(ratios)
    print(f"next turn of {options.tokens + options.more} tokens, {options.pairs} pairs, {min(hits)} to {max(hits)} tokens found: "
          f"first token after {statistics.median(warm) * 1e3:.1f} ms, computed whole {statistics.median(cold) * 1e3:.1f} ms; "
          f"{statistics.median(ratios):.1f} times sooner [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main()
