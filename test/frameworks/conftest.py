from typing import Callable, Iterator

import pytest
from peer import Peer


@pytest.fixture
def start(tmp_path) -> "Iterator[Callable[..., Peer]]":
    """Starts peers in this test's folder. All of them end with the test."""
    peers: "list[Peer]" = []

    def started(*args: object, **kinds: object) -> Peer:
        peers.append(Peer(tmp_path, *args, **kinds))  # type: ignore[arg-type]
        return peers[-1]

    yield started
    for peer in peers:
        peer.kill()
