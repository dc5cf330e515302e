#!/usr/bin/env python3
"""A binary that serves holds no fault point: none of the switches' names of src/base/faults.h stands in it.

`absent_test.py HEADER BINARY absent|present`; `present` is for a build with COFFERDAM_FAULTS=ON, and shows that the search finds
what is there. Names are searched for in every byte, so that stripping or inlining does not hide them.
"""
import pathlib
import re
import sys


def names(header):
    table = re.search(r"kFaultNames = \{(.*?)\};", header, re.DOTALL)
    found = re.findall(r'"([a-z0-9-]+)"', table.group(1)) if table else []
    switches = re.search(r"enum class Fault : uint8_t \{(.*?)\};", header, re.DOTALL)
    count = len(re.findall(r"^\s*k\w+,", switches.group(1), re.MULTILINE)) if switches else 0
    if not found or len(found) != count:
        sys.exit(f"{len(found)} names for {count} switches: does this test still know the header's form?")
    return found


def main():
    header, binary, wanted = sys.argv[1:]
    bytes_of_binary = pathlib.Path(binary).read_bytes()
    if b"--verify-reads" not in bytes_of_binary:
        sys.exit(f"{binary} does not even hold its own options: nothing can be said of it")
    missing = [name for name in names(pathlib.Path(header).read_text()) if name.encode() not in bytes_of_binary]
    present = [name for name in names(pathlib.Path(header).read_text()) if name.encode() in bytes_of_binary]
    if wanted == "absent" and present:
        sys.exit(f"{binary} holds fault points: {', '.join(present)}")
    if wanted == "present" and missing:
        sys.exit(f"{binary} lacks fault points: {', '.join(missing)}")


main()
