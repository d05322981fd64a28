"""A test that fails while the machine is kept from running gets a second try, and the summary names it.

How long something takes is not a test's concern, but some need another process to answer within seconds. On
a virtual machine whose processors are taken away for that long (steal), or where a real engine has them all,
a failure says little of the code. Elsewhere it counts at once; one that ran out of its time always does.
"""

import re
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from phasewise.clients.host import read_cpu_times, stolen_share

STARVED = 0.1
"""The share of processor time taken from the whole machine above which a failure is tried again."""
CROWDED = 0.6
"""The share of time in which somebody had to wait for a processor, above which it is too: of a test's own
time, or of the ten seconds up to its end, because a short test meets what those before it left undone."""
PRESSURE = Path("/proc/pressure/cpu")
REPEATED = "repeated"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run the test, and once more if it failed on a starved machine."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    shortage = Shortage()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed and not _ran_out_of_time(report) for report in reports) and (why := shortage.told()):
        item.user_properties.append((REPEATED, f"{item.nodeid} ({why})"))
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Shortage:
    """How much of the processors was missing since this was made."""

    def __init__(self):
        self._since = time.monotonic()
        self._times = read_cpu_times()
        self._waited_s, _ = _pressure()

    def told(self):
        """In words; empty where there was enough."""
        now = read_cpu_times()
        taken = stolen_share(self._times, now) if self._times and now else 0.0
        if taken > STARVED:
            return f"{taken:.0%} of the processors was taken away"
        waited_s, lately = _pressure()
        waited = max(lately, (waited_s - self._waited_s) / max(time.monotonic() - self._since, 1e-3))
        return f"somebody waited for a processor in {waited:.0%} of the time" if waited > CROWDED else ""


def _pressure():
    """For how long somebody who could have run had no processor: seconds since the system started, and the
    share of the last ten seconds.
    """
    try:
        found = re.search(r"some avg10=([\d.]+) .*total=(\d+)", PRESSURE.read_text())
    except OSError:
        return 0.0, 0.0
    return int(found[2]) / 1e6, float(found[1]) / 100


def _ran_out_of_time(report):
    """Its timer is spent, so that a second try could hang for ever."""
    return "from pytest-timeout" in report.longreprtext


def pytest_terminal_summary(terminalreporter):
    """Name every test that was repeated: if it is named often, its cause is another."""
    reports = [
        it for each in terminalreporter.stats.values() for it in each if getattr(it, "when", "") == "call"
    ]
    repeated = {value for it in reports for name, value in it.user_properties if name == REPEATED}
    if repeated:
        terminalreporter.section("repeated on a starved machine")
        for line in sorted(repeated):
            terminalreporter.write_line(line)
