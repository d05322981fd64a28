"""A test that leaves a connection open fails itself, not the one during which garbage is collected."""

from asyncio import selector_events

import pytest

_left = []


def _note_what_is_open(close):
    def closing(loop):
        if not loop.is_closed():
            _left.extend(repr(it) for it in list(loop._transports.values()) if not it.is_closing())
        close(loop)

    return closing


selector_events.BaseSelectorEventLoop.close = _note_what_is_open(selector_events.BaseSelectorEventLoop.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Its event loop is closed at the end of its fixtures."""
    _left.clear()
    result = yield
    if _left:
        pytest.fail(f"connections were left open: {', '.join(_left)}")
    return result
