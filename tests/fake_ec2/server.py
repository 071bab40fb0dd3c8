"""moto's EC2 with real machines: what run_instances launches boots and accepts ssh connections.

Started by world.sh inside a private network namespace:
  :5566               the AWS API (EC2, IAM, STS, ...; everything moto has)
  169.254.169.254:80  the instance metadata service, for the VMs: role, identity, spot notice
  :5567               the admin API: faults on demand (docs/fake-ec2.md)
"""

from __future__ import annotations

import logging
import sys
import threading
import time

import boto3
import moto.server
from botocore.exceptions import EndpointConnectionError
from machines import REGIONS, Machines, hang_on_moto
from pages import admin, metadata
from roles import judge_vms

_API, _ADMIN = 5566, 5567


def _prepare_account() -> None:
    """Add what an AWS account has and moto's lacks: default VPCs with an internet gateway."""
    url = f"http://127.0.0.1:{_API}"
    for region in REGIONS:
        ec2 = boto3.client("ec2", endpoint_url=url, region_name=region)
        vpc = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"][0]["VpcId"]
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
        table = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"][0]
        ec2.create_route(
            RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
        )


def main() -> None:
    """Serve until killed, together with the world."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    machines = Machines()
    hang_on_moto(machines)
    judge_vms(machines)
    threading.Thread(target=metadata(machines).serve_forever, daemon=True).start()
    arguments = ["-H", "0.0.0.0", "-p", str(_API)]
    threading.Thread(target=moto.server.main, args=[arguments], daemon=True).start()
    for _ in range(200):
        try:
            _prepare_account()
            break
        except EndpointConnectionError:  # until moto listens
            time.sleep(0.1)
    else:
        sys.exit("moto did not start")
    admin(machines, _ADMIN).serve_forever()


if __name__ == "__main__":
    main()
