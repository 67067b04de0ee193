import urllib.request
from urllib.error import URLError

import pytest


@pytest.fixture
def no_network(monkeypatch):
    """Record every attempt to reach the network, and let it fail as without one."""
    calls = []

    def refuse(*args, **kwargs):
        calls.append(args)
        raise URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return calls
