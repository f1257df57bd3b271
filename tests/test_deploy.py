"""What `deploy/` holds is accepted by the tools it is for, and agrees with the server."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import numpy as np
import promql_parser
import pytest
import yaml
from click.testing import CliRunner

import mis_server
from mis_core.config import EngineConfig
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.path.service import Answered
from mis_core.tasks.score.parsed import ParsedScore
from mis_server.cli import main
from mis_server.settings import ServerConfig
from mis_server.telemetry.metrics import _ENGINE, _FRONT, Metrics

DEPLOY = Path(__file__).parent.parent / "deploy"
SERVING = DEPLOY / "kubernetes" / "serving"
MANIFESTS = [
    each
    for name in ("replicas", "gateway", "autoscaler")
    for each in yaml.safe_load_all((SERVING / "base" / f"{name}.yaml").read_text())
]
UNIT = (DEPLOY / "systemd" / "mis-server.service").read_text()


def manifest(kind: str, name: str = "mis-server") -> Any:
    (found,) = [each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("version", ["1.30", "1.36"])
@pytest.mark.parametrize(
    "index", range(len(MANIFESTS)), ids=lambda i: f"{MANIFESTS[i]['kind']} {MANIFESTS[i]['metadata']['name']}"
)
def test_kubernetes_takes_the_manifests(index: int, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[index], version, strict=True)


def test_a_wrong_manifest_is_seen() -> None:
    wrong = manifest("Service") | {"spec": {"ports": "http"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def served_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ServerConfig:
    calls: list[ServerConfig] = []

    async def serve(settings: ServerConfig) -> None:
        calls.append(settings)

    monkeypatch.setattr("mis_server.serving.serve", serve)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    return calls[0]


def test_the_pods_settings_are_taken_and_leave_time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = manifest("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = SERVING / "base" / "mis-server.toml"
    arguments = [str(config) if each.endswith(".toml") else each for each in container["args"]]
    settings = served_with(monkeypatch, *arguments)
    assert settings.engine.model == "/models/Qwen3-0.6B"
    assert settings.port == container["ports"][0]["containerPort"]
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= before + settings.shutdown_timeout + 10
    names = {f"MIS_{name.upper()}" for name in (*vars(settings), *vars(settings.engine))}
    assert {each["name"] for each in container["env"] if each["name"].startswith("MIS_")} <= names
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/ready", "/health")


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "mis-server"), ("Deployment", "mis-gateway")])
def test_services_and_budgets_select_the_pods(kind: str, name: str) -> None:
    spec = manifest(kind, name)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert manifest("Service", name)["spec"]["selector"].items() <= labels.items()
    assert manifest("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = spec["template"]["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    probes = [container[each]["httpGet"] for each in container if each.endswith("Probe")]
    assert {
        each["port"] for each in (*manifest("Service", name)["spec"]["ports"], *probes) if "name" not in each
    } <= ports
    assert {each["targetPort"] for each in manifest("Service", name)["spec"]["ports"]} <= ports
    mounts = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
    assert mounts == {each["name"] for each in spec["template"]["spec"]["volumes"]} | claims


def test_the_gateway_names_every_replica_that_may_be_started() -> None:
    servers = re.findall(
        r"^    server (\S+) (\S+?)\.(\S+?)\.\S+:(\d+) id (\d+)$",
        (SERVING / "base/replicas.cfg").read_text(),
        re.MULTILINE,
    )
    replicas, scaler = manifest("StatefulSet")["spec"], manifest("HorizontalPodAutoscaler")["spec"]
    assert len(servers) == scaler["maxReplicas"]
    (port,) = [each["port"] for each in manifest("Service")["spec"]["ports"]]
    for number, (name, pod, service, at, identity) in enumerate(servers):
        assert name == pod == f"mis-server-{number}"
        assert (service, int(at), int(identity)) == (replicas["serviceName"], port, number + 1)


def test_the_autoscaler_asks_for_a_metric_that_exists() -> None:
    scaler = manifest("HorizontalPodAutoscaler")["spec"]
    target = scaler["scaleTargetRef"]
    assert manifest(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    assert "replicas" not in manifest(target["kind"], target["name"])["spec"], "both would set it"
    assert {each["pods"]["metric"]["name"] for each in scaler["metrics"]} <= exposed()


def test_the_gateways_settings_are_those_of_its_configuration() -> None:
    config = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    preset = dict(re.findall(r"^    presetenv (\S+) (\S+)", config, re.MULTILINE))
    (container,) = manifest("Deployment", "mis-gateway")["spec"]["template"]["spec"]["containers"]
    set_here = {each["name"]: each.get("value") for each in container["env"]}
    lines = (SERVING / "base/replicas.cfg").read_text()
    assert set(set_here) <= set(preset) | set(re.findall(r"\$\{(\w+)\}", lines))
    assert set(re.findall(r"\$\{(\w+)\}", config + lines)) <= set(preset) | set(set_here)
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    assert set_here["MIS_GATEWAY_ADDRESS"] == f"0.0.0.0:{ports['http']}"
    assert set_here["MIS_GATEWAY_METRICS"] == f"0.0.0.0:{ports['metrics']}"
    assert preset["MIS_GATEWAY_FOLDER"] in {each["mountPath"] for each in container["volumeMounts"]}


def test_the_unit_leaves_time_to_stop() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(seconds) >= ServerConfig(engine=EngineConfig(model="m")).shutdown_timeout + 10
    assert "mis-server serve --config" in UNIT


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # The one thing that is missing on this machine is the program.
    (tmp_path / "mis-server.service").write_text(UNIT.replace("/opt/mis-server/bin/mis-server", "/bin/true"))
    command = ["systemd-analyze", "verify", str(tmp_path / "mis-server.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


DASHBOARD = json.loads((DEPLOY / "grafana" / "mis-server.json").read_text())


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "5m")


def metric_names(expression: Any) -> Iterator[str]:
    """Yield the names of the series that a parsed query reads."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression.name
    for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(expression, part, None)
        if (
            child is not None
            and type(child).__module__.startswith(("promql_parser", "builtins"))
            and child != expression
        ):
            yield from metric_names(child)
    args = getattr(expression, "args", None)
    for child in args if isinstance(args, list) else getattr(args, "args", None) or []:
        yield from metric_names(child)


def exposed() -> set[str]:
    metrics = Metrics()
    metrics.engine.update(dict.fromkeys((key for key, *_ in _ENGINE), 1.0))
    metrics.engine.front = dict.fromkeys((key for key, *_ in _FRONT), 1.0)
    metrics.replied("POST", "/v1/score", 200, 0.1)
    one, nothing = np.ones(1, np.int32), np.zeros(1, np.int32)
    request = ScoreRequest(one, one, np.array([0, 1], np.int32), one, nothing[None])
    output = EngineOutput(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    parsed = ParsedScore(request, (request,), ItemErrors("items", 1, per_item=False))
    metrics.answered("score", Answered(parsed, (output,), None, {"device": 1.0}), 0.1)
    lines = metrics.text().decode().splitlines()
    return {re.split(r"[ {]", line)[0] for line in lines if not line.startswith("#")}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    asked = {name for query in queries() for name in metric_names(promql_parser.parse(query))}
    assert len(asked) >= 20
    assert asked <= exposed()


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_image_has_the_version_of_the_package() -> None:
    image = f"mis-server:{mis_server.__version__}"
    assert image in (DEPLOY / "Dockerfile").read_text()
    (tag,) = yaml.safe_load((SERVING / "base" / "kustomization.yaml").read_text())["images"]
    assert (tag["name"], tag["newTag"]) == ("mis-server", mis_server.__version__)
    for overlay in ("cpu", "gpu"):
        (tag,) = yaml.safe_load((SERVING / overlay / "kustomization.yaml").read_text())["images"]
        assert tag["newTag"] == mis_server.__version__
