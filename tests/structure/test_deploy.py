"""The examples of deploying say commands, probes and ports that exist."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtk.cli.main import build_parser
from vtk.server.settings import Limits

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def words_of(name: str, instruction: str) -> list[str]:
    found = re.search(rf"^{instruction} (\[.*\])$", (DEPLOY / name).read_text(), re.MULTILINE)
    assert found, instruction
    words: list[str] = json.loads(found[1])
    return words


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def deployment() -> dict[str, Any]:
    (found,) = [document for document in documents("kubernetes.yaml") if document["kind"] == "Deployment"]
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_containers_start_a_server_that_may_listen(name: str) -> None:
    words = words_of(name, "ENTRYPOINT") + words_of(name, "CMD")
    args = build_parser().parse_args(words[1:])
    assert (words[0], args.verb, args.host) == ("vtk", "serve", "0.0.0.0")
    assert args.api_key, "open to every host without a key"


def test_kubernetes_replaces_the_command_of_the_container_with_one_that_parses() -> None:
    (container,) = deployment()["containers"]
    args = build_parser().parse_args(words_of("Dockerfile", "ENTRYPOINT")[1:] + container["args"])
    assert args.api_key
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": args.port or 8000, "grpc": args.grpc_port}


def test_the_service_of_systemd_parses() -> None:
    line = re.search(r"^ExecStart=(.*)$", (DEPLOY / "vtk.service").read_text(), re.MULTILINE)
    assert line
    assert build_parser().parse_args(shlex.split(line[1])[1:]).host == "127.0.0.1"


def test_the_probes_are_routes_that_need_no_key() -> None:
    (container,) = deployment()["containers"]
    probed = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probed == {"/health/ready", "/health/live"}
    from vtk.server import health

    served = Path(health.__file__).read_text()
    assert all(f'"{path}"' in served for path in probed)


def test_everybody_waits_longer_than_the_server_drains() -> None:
    (compose,) = documents("compose.yaml")
    service = (DEPLOY / "vtk.service").read_text()
    limits = [
        int(compose["services"]["vtk"]["stop_grace_period"].removesuffix("s")),
        deployment()["terminationGracePeriodSeconds"],
        int(service.partition("TimeoutStopSec=")[2].split()[0]),
    ]
    assert min(limits) > Limits().drain_timeout
