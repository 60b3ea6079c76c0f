import asyncio

from octavo.gateway.discovery import Discovered, Endpoint
from octavo.gateway.static_discovery import StaticDiscovery


def test_what_the_settings_name_is_there_at_once_and_for_ever() -> None:
    async def scenario() -> None:
        found: list[Discovered] = []
        finding = asyncio.create_task(StaticDiscovery(["a:1", "unix:/b", "a:1"]).run(found.append))
        await asyncio.sleep(0.05)
        assert not finding.done()
        finding.cancel()
        endpoints = (Endpoint(address="a:1"), Endpoint(address="unix:/b"))
        assert found == [Discovered(endpoints=endpoints, services=None)]

    asyncio.run(scenario())


def test_with_tls_the_certificate_names_the_host_and_a_path_stays_plain() -> None:
    async def scenario() -> None:
        found: list[Discovered] = []
        discovery = StaticDiscovery(["a.example:1", "[::1]:2", "unix:/b:3"], tls=True)
        finding = asyncio.create_task(discovery.run(found.append))
        await asyncio.sleep(0.05)
        finding.cancel()
        assert [e.tls_name for e in found[0].endpoints] == ["a.example", "::1", ""]

    asyncio.run(scenario())
