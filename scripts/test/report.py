#!/usr/bin/env python3
"""Reads nextest's reports: names the tests that failed and passed when they were tried again, with what they printed
when they failed, and the slowest ones.

Ends with status 1 where more tests than FLAKY_MAX failed at first: then it is not chance.
"""

import os
import sys
import textwrap
import xml.etree.ElementTree as xml

FLAKY_MAX = 3
# The reason is at the end.
PRINTED_LINES_MAX = 40

# Tests that were not compiled leave no report, and the shell then hands its pattern over as it is.
reports = [path for path in sys.argv[1:] if os.path.exists(path)]
if not reports:
    sys.exit("report: the tests left no report.")
cases = [case for path in reports for case in xml.parse(path).iter("testcase")]
cases.sort(key=lambda case: -float(case.get("time")))
print(f"{sum(float(case.get('time')) for case in cases):.0f} s in all {len(cases)} tests; the slowest:")
for case in cases[:25]:
    print(f"{float(case.get('time')):7.1f} s  {case.get('name')}")

flaky = [case for case in cases if case.find("flakyFailure") is not None]
print(f"{len(flaky)} passed at the second attempt only{':' if flaky else '.'}")
for case in flaky:
    print(f"  flaky  {case.get('name')}")
    for attempt in case.findall("flakyFailure"):
        printed = "\n".join(attempt.findtext(stream) or "" for stream in ("system-out", "system-err"))
        print(textwrap.indent("\n".join(printed.splitlines()[-PRINTED_LINES_MAX:]), "    "))
if len(flaky) > FLAKY_MAX:
    sys.exit(f"report: more than {FLAKY_MAX} tests failed at first.")
