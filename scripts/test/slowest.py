#!/usr/bin/env python3
"""Prints the slowest tests of nextest's reports: what to look at first when the tests take too long."""

import os
import sys
import xml.etree.ElementTree as xml

# Tests that were not compiled leave no report, and the shell then hands its pattern over as it is.
reports = [path for path in sys.argv[1:] if os.path.exists(path)]
cases = [case for path in reports for case in xml.parse(path).iter("testcase")]
cases.sort(key=lambda case: -float(case.get("time")))
if cases:
    print(f"{sum(float(case.get('time')) for case in cases):.0f} s in all {len(cases)} tests; the slowest:")
for case in cases[:25]:
    print(f"{float(case.get('time')):7.1f} s  {case.get('name')}")
