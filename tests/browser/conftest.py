"""One browser for all pages. Its console must be empty at the end of a test."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, chromium


@pytest.fixture(scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """A test that expects console messages removes them with ``console()``."""
    _browser.emulate()
    yield _browser
    assert _browser.console() == []
