#!/usr/bin/env python3
"""A binary that serves holds no fault point: none of the switches' names of src/base/faults.h stands in it, none of the kinds of
faults of src/kv/corruption.h, no option or metric of their injection, and not their demo.

`absent_test.py SWITCHES KINDS BINARY absent|present`, the first two being those headers; `present` is for a build with
COFFERDAM_FAULTS=ON, and shows that the search finds what is there. Names are searched for in every byte, so that stripping or inlining does not hide them.
"""
import pathlib
import re
import sys


INJECTION = ["--inject", "faults_injected_total", "fault_victims_total", "faults_caught_total"]


def switches_of(header):
    table = re.search(r"kFaultNames = \{(.*?)\};", header, re.DOTALL)
    found = re.findall(r'"([a-z0-9-]+)"', table.group(1)) if table else []
    switches = re.search(r"enum class Fault : uint8_t \{(.*?)\};", header, re.DOTALL)
    count = len(re.findall(r"^\s*k\w+,", switches.group(1), re.MULTILINE)) if switches else 0
    if not found or len(found) != count:
        sys.exit(f"{len(found)} names for {count} switches: does this test still know the header's form?")
    return found + ["demo-leak", "--fault"]


def kinds_of(header):
    table = re.search(r"kFaultKindNames = \{(.*?)\};", header, re.DOTALL)
    found = re.findall(r'"([a-z-]+)"', table.group(1)) if table else []
    count = re.search(r"kFaultKinds = (\d+);", header)
    if not found or len(found) != int(count.group(1)):
        sys.exit(f"{len(found)} names for the kinds of faults: does this test still know the header's form?")
    return [name for name in found if "-" in name]  # words like 'swap' stand in every binary


def main():
    switches, kinds, binary, wanted = sys.argv[1:]
    bytes_of_binary = pathlib.Path(binary).read_bytes()
    if b"--verify-reads" not in bytes_of_binary:
        sys.exit(f"{binary} does not even hold its own options: nothing can be said of it")
    names = switches_of(pathlib.Path(switches).read_text()) + kinds_of(pathlib.Path(kinds).read_text()) + INJECTION
    missing = [name for name in names if name.encode() not in bytes_of_binary]
    present = [name for name in names if name.encode() in bytes_of_binary]
    if wanted == "absent" and present:
        sys.exit(f"{binary} holds fault points: {', '.join(present)}")
    if wanted == "present" and missing:
        sys.exit(f"{binary} lacks fault points: {', '.join(missing)}")


main()
