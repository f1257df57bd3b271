"""Runner scale sets and benchmark Jobs are what Kubernetes takes, and agree with the requirements and mis-bench."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import mis_bench
from documented_commands import faults

KUBERNETES = Path(__file__).parents[1] / "deploy" / "kubernetes"
RUNNERS = {path.stem: path for path in sorted((KUBERNETES / "runners").glob("*.yaml")) if path.stem != "common"}
OVERLAYS = ("gpu", "tpu")
SERVING = {"cpu": None, "gpu": "nvidia.com/gpu", "v5e": "google.com/tpu", "v6e": "google.com/tpu"}
VERSIONS = ("1.30", "1.36")

# R009-1: chips, processors, memory, whether the node may be taken away, most runners at once (None: not said).
SHAPES = {
    "arc-runner-v6e-1": ("google.com/tpu", "1", "40", "150Gi", True, 4),
    "arc-runner-v6e-1-standard": ("google.com/tpu", "1", "40", "150Gi", False, None),
    "arc-runner-v6e-4": ("google.com/tpu", "4", "100", "150Gi", True, None),
    "arc-runner-v5e-4": ("google.com/tpu", "4", None, None, None, 2),
    "gpu-runner": ("nvidia.com/gpu", "1", None, None, None, None),
    "arc-runner-cpu": (None, None, "4", "8Gi", None, None),
}
# Of the chart's values.yaml; the chart's schema constrains none of these.
CHART = {"githubConfigUrl", "githubConfigSecret", "minRunners", "maxRunners", "template"}
TOPOLOGIES = {"1x1": "1", "2x2": "4"}


def merged(first: Any, second: Any) -> Any:
    """Return what Helm makes of two files of values: maps are merged, anything else is replaced."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {key: merged(first[key], value) if key in first else value for key, value in second.items()}


def scale_set(name: str) -> dict[str, Any]:
    common, own = (yaml.safe_load(path.read_text()) for path in (KUBERNETES / "runners/common.yaml", RUNNERS[name]))
    return merged(common, own)


def test_the_scale_sets_are_those_of_the_requirements() -> None:
    assert set(RUNNERS) == set(SHAPES)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_kubernetes_takes_the_pods_of_a_scale_set(name: str, version: str) -> None:
    values = scale_set(name)
    assert set(values) == CHART
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runner"}} | values["template"]
    kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("name", SHAPES)
def test_a_scale_set_has_its_shape_and_its_models(name: str) -> None:
    chip, count, cpu, memory, spot, most = SHAPES[name]
    values = scale_set(name)
    pod = values["template"]["spec"]
    (container,) = pod["containers"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert (container["name"], container["command"]) == ("runner", ["/home/runner/run.sh"])  # the chart looks for them
    assert {"name": "ACTIONS_RUNNER_DISABLE_OOM_SCORE_ADJ", "value": "true"} in container["env"]
    assert values["minRunners"] == 0
    assert values["maxRunners"] == (most or values["maxRunners"])
    assert requests["cpu"] == (cpu or requests["cpu"])
    assert requests["memory"] == limits["memory"] == (memory or limits["memory"])
    assert {each: limits[each] for each in limits if each != "memory"} == ({chip: count} if chip else {})
    assert chip is None or requests[chip] == count
    selector = pod.get("nodeSelector", {})
    assert spot is None or ("cloud.google.com/gke-spot" in selector) == spot
    topology = selector.get("cloud.google.com/gke-tpu-topology")
    assert topology is None or TOPOLOGIES[topology] == count
    assert {each["key"] for each in pod.get("tolerations", [])} == (
        ({chip} if chip else set()) | ({"cloud.google.com/gke-spot"} & set(selector))
    )
    (volume,) = pod["volumes"]
    assert volume["csi"]["volumeAttributes"]["mountOptions"].split(",")[1] == "only-dir=huggingface_models"
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/models", "readOnly": True}]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_files_that_an_overlay_names_exist_and_patch_something(overlay: str) -> None:
    folder = KUBERNETES / "benchmarks" / overlay
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (base,) = [folder / each for each in kustomization["resources"]]
    (patch,) = [yaml.safe_load((folder / each["path"]).read_text()) for each in kustomization["patches"]]
    (resource,) = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    job = yaml.safe_load((base / resource).read_text())
    for key in ("apiVersion", "kind"):
        assert patch[key] == job[key]
    assert patch["metadata"]["name"] == job["metadata"]["name"]
    names = [{each["name"] for each in spec["spec"]["template"]["spec"]["containers"]} for spec in (patch, job)]
    assert names[0] == names[1]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, whose `kustomize` applies overlays")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_takes_the_job_that_an_overlay_makes(overlay: str) -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES / "benchmarks" / overlay)]
    (job,) = yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert job["metadata"]["name"] == f"mis-benchmark-{overlay}"
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)
    pod = job["spec"]["template"]["spec"]
    (bench,) = pod["containers"]
    assert faults(["mis-bench", *bench["args"]]) == []
    containers = [*pod.get("initContainers", []), bench]
    chips = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}
    owners = [each for each in containers if chips[overlay] in each["resources"]["limits"]]
    assert len(owners) == 1
    mounts = {mount["name"] for each in containers for mount in each["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, whose `kustomize` applies overlays")
@pytest.mark.parametrize("overlay", SERVING)
def test_kubernetes_takes_replicas_and_gateway_of_an_overlay(overlay: str) -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES / "serving" / overlay)]
    made = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for each in made:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    by_kind = {(each["kind"], each["metadata"]["name"].partition("-")[2].split("-")[0]): each for each in made}
    assert set(by_kind) == {
        *((kind, name) for kind in ("ConfigMap", "Service", "PodDisruptionBudget") for name in ("server", "gateway")),
        *(("StatefulSet", "server"), ("Deployment", "gateway"), ("HorizontalPodAutoscaler", "server")),
        ("PersistentVolumeClaim", ""),
    }
    assert set(by_kind["ConfigMap", "gateway"]["data"]) == {
        "haproxy.cfg",
        "affinity.lua",
        "metrics.txt",
        "replicas.cfg",
    }
    pod = by_kind["StatefulSet", "server"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    chip = SERVING[overlay]
    assert {each: limits[each] for each in limits if each not in ("cpu", "memory")} == ({chip: "1"} if chip else {})
    assert ("nodeSelector" in pod) == bool(chip)
    assert pod.get("nodeSelector", {}).get("cloud.google.com/gke-tpu-topology", "1x1") == "1x1"
    assert container["image"].split(":")[0].removeprefix("REGISTRY/mis-server") == {"cpu": "-cpu", "gpu": "-cuda"}.get(
        overlay, ""
    )


def test_both_jobs_measure_the_same() -> None:
    asked = []
    for overlay in OVERLAYS:
        job = yaml.safe_load((KUBERNETES / "benchmarks" / overlay / "job.yaml").read_text())
        (bench,) = job["spec"]["template"]["spec"]["containers"]
        asked.append({each for each in bench["args"] if each.startswith(("--model", "--view", "--workload"))})
    assert asked[0] == asked[1]


def test_the_image_has_the_version_of_the_package() -> None:
    image = f"REGISTRY/mis-bench:{mis_bench.__version__}"
    job = yaml.safe_load((KUBERNETES / "benchmarks/base/job.yaml").read_text())
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == image
    assert f"-t {image} " in (KUBERNETES / "benchmarks/Dockerfile").read_text()


def test_a_wrong_pod_is_seen() -> None:
    template = scale_set("arc-runner-cpu")["template"]
    template["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod"} | template, "1.36", strict=True)
