"""One browser for all pages, and nothing on its console when a test is done."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, chromium


@pytest.fixture(scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """A test that expects something on the console takes it away with ``console()``."""
    _browser.emulate()
    yield _browser
    assert _browser.console() == []
