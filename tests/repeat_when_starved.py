"""A test that fails while the machine is kept from running gets a second try, and the summary names it.

How long something takes is not a test's concern, but some need another process to answer within seconds. On
a virtual machine whose processors are taken away for that long (steal), a failure says nothing of the code.
Where little was taken, a failure counts at once; one that ran out of its time always does.
"""

import pytest
from _pytest.runner import runtestprotocol

from phasewise.clients.host import read_cpu_times, stolen_share

STARVED = 0.1
"""The share of processor time taken from the whole machine above which a failure is tried again."""
REPEATED = "repeated"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run the test, and once more if it failed on a starved machine."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    before = read_cpu_times()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    after = read_cpu_times()
    taken = stolen_share(before, after) if before and after else 0.0
    if taken > STARVED and any(report.failed and not _ran_out_of_time(report) for report in reports):
        item.user_properties.append(
            (REPEATED, f"{item.nodeid} ({taken:.0%} of the processors was taken away)")
        )
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


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
