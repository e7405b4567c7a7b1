"""How a node reaches its SuperLink: by which transport, how fast, and through which proxy."""

from server_app.deploy.calls.fleet_client import FleetClient
from server_app.deploy.host.app_integrity import own_app
from server_app.deploy.host.host import place_of
from server_app.deploy.host.processes import say
from server_app.deploy.host.proxy import proxy_for
from server_app.deploy.host.resource_limits import SlowLink
from server_app.deploy.kits.kit import NodeKit
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.node.options import Options
from server_app.deploy.node.probe import Probe


def connection(kit: NodeKit, options: Options) -> tuple[FleetClient, Probe]:
    """Return the client of the SuperLink's Fleet API, and the probe of its port."""
    link = read_address(kit.link, "link")
    address, name = kit.link, ""
    if options.bandwidth:
        address, name = f"127.0.0.1:{SlowLink(link, options.bandwidth).port}", link[0]
    transport = "http" if options.http else "grpc"
    app = " ".join(own_app()) if kit.policy.apps == "installed" else ""
    client = FleetClient(address, kit.ca_certificate, kit.key, place_of(kit.path), name, transport, app)
    direct = (
        options.http or options.bandwidth
    )  # neither needs a proxy: one cannot use it, the other is loopback
    proxy = None if direct else proxy_for(link[0])
    if proxy:
        say(f"connecting through the proxy {proxy} of the environment")
    return client, Probe(link, kit.ca_certificate, transport, proxy)
