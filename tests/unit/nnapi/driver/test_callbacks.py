"""Which method of a client's callback is called, with which arguments."""

from __future__ import annotations

import pytest

from hal.nnapi.driver.callbacks import check_callback, notify_executed, notify_prepared, older_status
from hal.nnapi.errors import StatusError
from hal.nnapi.types import ErrorStatus, OutputShape, Timing

MISSED = ErrorStatus.MISSED_DEADLINE_TRANSIENT


def client(*names):
    """Return an object with these methods that records its calls."""
    calls = []
    methods = {name: lambda self, *args, name=name: calls.append((name, *args)) for name in names}
    return type("Client", (), methods)(), calls


@pytest.mark.parametrize(
    ("names", "called", "status"),
    [
        (("notify", "notify_1_2", "notify_1_3"), "notify_1_3", MISSED),
        (("notify", "notify_1_2"), "notify_1_2", ErrorStatus.GENERAL_FAILURE),
        (("notify",), "notify", ErrorStatus.GENERAL_FAILURE),
    ],
)
def test_the_newest_method_is_called_once_with_a_status_it_knows(names, called, status):
    callback, calls = client(*names)
    notify_prepared(callback, MISSED, None)
    assert calls == [(called, status, None)]
    calls.clear()
    shapes, timing = [OutputShape([1], True)], Timing(1, 2)
    notify_executed(callback, MISSED, shapes, timing)
    assert calls == [(called, status)] if called == "notify" else [(called, status, shapes, timing)]


def test_what_a_callback_raises_is_logged_and_goes_no_further(caplog):
    class Broken:
        def notify(self, *args):
            raise ZeroDivisionError("oh")

    notify_prepared(Broken(), ErrorStatus.NONE, None)
    assert "ZeroDivisionError: oh" in caplog.text


@pytest.mark.parametrize("callback", [None, object(), 7])
def test_what_cannot_be_told_is_refused(callback):
    with pytest.raises(StatusError, match="notify"):
        check_callback(callback)
    notify_prepared(callback, ErrorStatus.NONE, None)  # and does no harm


@pytest.mark.parametrize("status", list(ErrorStatus))
def test_older_clients_hear_only_what_they_know(status):
    known = status <= ErrorStatus.INVALID_ARGUMENT
    assert older_status(status) is (status if known else ErrorStatus.GENERAL_FAILURE)
