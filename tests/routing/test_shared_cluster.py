"""Shared router state in a cluster and behind a Sentinel, with real servers."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis import asyncio as redis_asyncio

from agent import Router, errors
from agent.routing.outbox import flush_all
from agent.routing.redis_state import RedisState
from agent.types import SpendLimit
from tests.routing.shared_worker import DOLLARS_PER_TOKEN, MAX_TOKENS, Vendor, make_router
from tests.support.redis_cluster import MASTER, ClusterServers, SentinelServers, wait_until
from tests.support.redis_server import ExternalServer, open_server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterServers]:
    servers = ClusterServers()
    yield servers
    flush_all()
    servers.close()


def make_limited(client: Any, name: str, **options: Any) -> tuple[Router, Vendor]:
    vendor = Vendor(0.0, 20)
    state = RedisState(client=client, timeout=5.0, **options)
    return make_router(vendor, state, name, spend=SpendLimit(dollars=1.0), rates={"rpm": 1000}, max_wait=0.0), vendor


def call_twice(router: Router) -> None:
    """Call in a thread, and in an event loop."""
    assert router.complete("hi", max_tokens=MAX_TOKENS).text == "hello"
    assert asyncio.run(router.acomplete("hi", max_tokens=MAX_TOKENS)).text == "hello"


def test_a_client_of_redis_py_takes_the_place_of_a_url() -> None:
    server: ExternalServer = open_server()
    client = server.client()
    router, vendor = make_limited(client, os.urandom(6).hex())
    call_twice(router)
    router.flush()
    assert router.get_spend() == pytest.approx(vendor.tokens * DOLLARS_PER_TOKEN)
    with pytest.raises(errors.ConfigurationError, match="pickled"):
        pickle.dumps(RedisState(client=client))
    client.close()
    flush_all()
    server.close()


def test_a_state_takes_a_url_or_a_synchronous_client() -> None:
    with pytest.raises(errors.ConfigurationError, match="URL or a client"):
        RedisState()
    with pytest.raises(errors.ConfigurationError, match="URL or a client"):
        RedisState("redis://127.0.0.1", client=Redis())
    with pytest.raises(errors.ConfigurationError, match="synchronous"):
        RedisState(client=redis_asyncio.Redis())


def test_routers_on_all_nodes_of_a_cluster_share_their_budgets(cluster: ClusterServers) -> None:
    """The name of a router determines the node that holds its state."""
    for name in ("one", "two", "three", "four", "five", "six"):
        (first, vendor), (second, other) = (make_limited(cluster.connect(), name) for _ in range(2))
        call_twice(first)
        call_twice(second)
        first.flush()
        second.flush()
        spent = (vendor.tokens + other.tokens) * DOLLARS_PER_TOKEN
        assert first.get_spend() == second.get_spend() == pytest.approx(spent)
        with pytest.raises(errors.BudgetExceededError):
            first.with_config(spend=SpendLimit(dollars=spent)).complete("hi", max_tokens=MAX_TOKENS)
    used = []
    for port in cluster.ports:
        with cluster.client(port) as client:
            used.append(bool(client.keys("agent:*")))
    assert used == [True, True, True]


def test_a_slot_that_moves_to_another_node_is_followed(cluster: ClusterServers) -> None:
    """Calls fall back to local limits, and the background thread finds the new node."""
    connection = cluster.connect()
    router, vendor = make_limited(connection, "moving")
    call_twice(router)
    router.flush()
    shared = router._settings.shared
    assert shared is not None
    slot = connection.keyslot(f"agent:{{{shared.namespace}}}:l")
    nodes = {port: cluster.client(port) for port in cluster.ports}
    owner = next(port for port in cluster.ports if nodes[port].keys(f"agent:{{{shared.namespace}}}:*"))
    target = next(port for port in cluster.ports if port != owner)
    identity = nodes[target].execute_command("CLUSTER", "MYID").decode()
    nodes[target].execute_command(
        "CLUSTER", "SETSLOT", str(slot), "IMPORTING", nodes[owner].execute_command("CLUSTER", "MYID").decode()
    )
    nodes[owner].execute_command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", identity)
    for key in nodes[owner].keys(f"agent:{{{shared.namespace}}}:*"):
        nodes[owner].execute_command("MIGRATE", "127.0.0.1", str(target), key, "0", "5000")
    for client in nodes.values():
        client.execute_command("CLUSTER", "SETSLOT", str(slot), "NODE", identity)
    call_twice(router)
    wait_until(lambda: _is_up_again(router))
    call_twice(router)
    router.flush()
    assert router.get_spend() == pytest.approx(vendor.tokens * DOLLARS_PER_TOKEN)
    for client in nodes.values():
        client.close()


def _is_up_again(router: Router) -> bool:
    assert router._settings.shared is not None
    router.flush()
    return router._settings.shared.outbox.is_up


def test_a_failover_by_a_sentinel_is_followed() -> None:
    """The replica has what was settled before, so that its amounts are right."""
    servers = SentinelServers()
    try:
        router, vendor = make_limited(servers.sentinel.master_for(MASTER), "failing")
        call_twice(router)
        router.flush()
        with servers.client(servers.master) as client:
            assert client.wait(1, 5000) == 1
        servers.kill(servers.master)
        call_twice(router)
        wait_until(lambda: _is_up_again(router))
        call_twice(router)
        router.flush()
        assert servers.sentinel.discover_master(MASTER)[1] == servers.replica
        assert router.get_spend() == pytest.approx(vendor.tokens * DOLLARS_PER_TOKEN)
    finally:
        flush_all()
        servers.close()
