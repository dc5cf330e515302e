#!/usr/bin/env python3
"""Writes held-out prompts as JSON lines: {"kind", "messages", "answer", "tokens"}. The same seed gives the same lines.

    ./eval_prompts.py --seed 20261130 --out heldout.jsonl

Kinds: fact512 and fact1024 (up to so many tokens, the fact is there), unknown512 and unknown1024 (it is not), and
repeats512 (all codes are of four characters alone, such as QQQFQ3Q33QQ33Q2Q, which is where the model errs). `tokens`
counts the prompt as the chat template renders it. With --ids each line has the token ids as well; with --plain the prompts
are texts to be completed instead of messages ({"prompt": "... The access code of Anna is"}, whose answer is " 7391").
"""
import argparse
import json
import random

import language
from language import ASSISTANT, BEGIN, SYSTEM, USER, Writer

ROLES = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant"}
# Codes of random characters, of all or of digits; and codes of four characters alone, see Writer.code.
RANDOM, REPEATS = (0.79, 0.21, 0.0), (0.0, 0.0, 1.0)
# By kind: tokens at most, whether the fact is there, prompts, codes.
KINDS = {
    "fact512": (512, True, 1000, RANDOM),
    "fact1024": (1024, True, 1000, RANDOM),
    "unknown512": (512, False, 1000, RANDOM),
    "unknown1024": (1024, False, 1000, RANDOM),
    "repeats512": (512, True, 200, REPEATS),
}
TAIL = 13  # what follows the last fact or filler sentence at most: the question and the answer's opening


def messages_of(ids):
    """The messages of a rendered conversation: [BEGIN] then role, content, END for each."""
    messages, start = [], 1
    while start < len(ids) - 1:
        end = ids.index(language.END, start)
        messages.append({"role": ROLES[ids[start]], "content": language.decode(ids[start + 1 : end])})
        start = end + 1
    return messages


def body(w, rng, target):
    """The context: sometimes a system message and earlier turns, always at least one fact."""
    if rng.random() < 0.2:
        w.open(SYSTEM)
        rng.choice((w.note, w.filler, w.fact))()
        w.close()
    w.open(USER)
    share = rng.choice((0.1, 0.3, 0.6, 1.0))
    turns = rng.choice((1, 2, 4)) if rng.random() < 0.2 else 0
    w.fact()
    for turn in range(turns):
        w.fill(target * (0.5 + 0.5 * turn / turns) - 30 * turns, share)
        name = w.pick(0.2)
        w.ask(name)
        w.close()
        w.answer(name)
        w.open(USER)
    w.fill(target, share)


def conversation(rng, limit, known, codes):
    """(ids up to the answer, answer) of at most `limit` tokens; the fact is anywhere in the context."""
    while True:
        w = Writer(rng, newlines=rng.random() < 0.1, codes=codes)
        body(w, rng, rng.randint(30, limit - 40))
        name = w.pick(0.0 if known else 1.0)
        w.ask(name)
        w.close()
        w.say([ASSISTANT])
        if len(w.ids) <= limit:
            return w.ids, language.decode(w.facts.get(name, [language.UNKNOWN]))


def completion(rng, limit, known, codes):
    while True:
        w = Writer(rng, codes=codes)
        w.fact()
        w.fill(rng.randint(30, limit - 40), rng.choice((0.1, 0.3, 0.6, 1.0)))
        name = w.pick(0.0 if known else 1.0)
        w.restate(name)
        ids = w.ids[: w.answers.index(1)]
        if len(ids) <= limit:
            return ids, " " + language.decode(w.facts.get(name, [language.UNKNOWN]))


def lines(args):
    rng = random.Random(args.seed)
    for kind, (limit, known, count, codes) in KINDS.items():
        for _ in range(max(1, int(count * args.scale))):
            ids, answer = (completion if args.plain else conversation)(rng, limit, known, codes)
            line = {"kind": kind}
            line |= {"prompt": language.decode(ids[1:])} if args.plain else {"messages": messages_of(ids)}
            line |= {"answer": answer, "tokens": len(ids)}
            if args.ids:
                line["ids"] = ids
            yield line


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the counts of prompts")
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    with open(args.out, "w") as out:
        for line in lines(args):
            out.write(json.dumps(line) + "\n")
