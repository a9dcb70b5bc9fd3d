"""The files of docs/deploy: what their own tools say of them, and what they must agree on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtd import __version__

DEPLOY = Path(__file__).parents[2] / "docs/deploy"
CHART = DEPLOY / "kubernetes"


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [one for one in programs if shutil.which(one) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def run(*command: str | Path, given: str = "") -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(path: str, pattern: str) -> float:
    (found,) = re.findall(pattern, (DEPLOY / path).read_text())
    return float(found)


Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    """By kind and name, without what names the namespace."""
    found: Objects = {}
    for one in yaml.safe_load_all(text):
        one["metadata"].pop("namespace", None)
        found[one["kind"], one["metadata"]["name"]] = one
    return found


def render(*settings: str) -> str:
    given = (word for one in settings for word in ("--set", one))
    return run("helm", "template", "dtd", CHART, "--namespace", "dtd", *given)


@needs("kubectl", "kubernetes-validate")
@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_kubernetes_accepts_the_manifests(overlay: str, tmp_path: Path) -> None:
    built = tmp_path / "built.yaml"
    built.write_text(run("kubectl", "kustomize", CHART / overlay))
    run("kubernetes-validate", "--strict", built)


@needs("helm")
def test_the_chart_has_the_objects_of_the_base() -> None:
    base = "\n---\n".join(
        (CHART / f"base/{name}.yaml").read_text() for name in ("coordinator", "workers", "network")
    )
    assert objects(render("image=dtd")) == objects(base)


@needs("helm", "kubectl")
def test_the_chart_has_the_objects_of_the_overlay_for_gpus() -> None:
    overlay = objects(run("kubectl", "kustomize", CHART / "gpu"))
    del overlay["Namespace", "dtd"]
    image = f"image=registry.example/dtd:{__version__}-cuda"
    assert objects(render(image, "workers.count=4", "workers.gpu=nvidia.com/gpu")) == overlay


@needs("helm", "kubernetes-validate")
def test_every_value_of_the_chart_gets_to_its_place(tmp_path: Path) -> None:
    settings = (
        "image=r/dtd:1",
        "imagePullSecrets={puller}",
        "tokenSecret=other",
        "coordinator.storage.class=safe",
        "coordinator.storage.size=6Gi",
        "coordinator.resources.limits.memory=3Gi",
        "workers.count=3",
        "workers.drainTimeoutSeconds=120",
        "workers.sharedMemory=2Gi",
        "workers.storage.class=fast",
        "workers.storage.size=30Gi",
        "workers.resources.limits.memory=8Gi",
        "workers.pod.nodeSelector.disk=fast",
    )
    run("helm", "lint", "--strict", CHART, *(w for one in settings for w in ("--set", one)))
    built = tmp_path / "built.yaml"
    built.write_text(render(*settings))
    run("kubernetes-validate", "--strict", built)
    found = objects(built.read_text())
    for name, size, memory in (("coordinator", "6Gi", "3Gi"), ("worker", "30Gi", "8Gi")):
        spec = found["StatefulSet", f"dtd-{name}"]["spec"]
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["spec"]["resources"] == {"requests": {"storage": size}}
        assert claim["spec"]["storageClassName"] == {"coordinator": "safe", "worker": "fast"}[name]
        pod = spec["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "puller"}]
        assert pod["containers"][0]["resources"]["limits"] == {"memory": memory}
        assert {one["image"] for one in pod["containers"]} == {"r/dtd:1"}
    assert spec["replicas"] == 3
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["terminationGracePeriodSeconds"] == 130
    assert {"name": "DTD_DRAIN_TIMEOUT_S", "value": "120"} in pod["containers"][0]["env"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in pod["volumes"]
    (join,) = pod["initContainers"]
    assert join["image"] == "r/dtd:1"
    source = {"secretKeyRef": {"name": "other", "key": "token"}}
    assert {"name": "TOKEN", "valueFrom": source} in join["env"]


@needs("helm")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("tokenSecret=dtd-token", "image: name the image of docs/deploy/container.md"),
        ("workers.cuont=3", "workers: Additional property cuont is not allowed"),
        ("workers.count=-1", "workers.count: Must be greater than or equal to 0"),
        ("workers.gpu=1", "workers.gpu: Invalid type. Expected: string, given: integer"),
        ("workers.storage.size=big", "workers.storage.size: Does not match pattern"),
        ("workers.drainTimeoutSeconds=", "workers.drainTimeoutSeconds: Invalid type"),
        ("tokenSecret=Dtd_Token", "tokenSecret: Does not match pattern"),
    ],
)
def test_a_wrong_value_is_named(setting: str, told: str) -> None:
    command = ("helm", "template", "dtd", CHART, "--set", setting)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_chart_has_the_version_of_dtd() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@needs("ansible-playbook")
def test_ansible_can_read_the_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path))
    ansible = DEPLOY / "ansible"
    run("ansible-playbook", "--syntax-check", "-i", ansible / "inventory.ini", ansible / "site.yml")


@needs("cloud-init")
def test_cloud_init_accepts_the_user_data() -> None:
    run("cloud-init", "schema", "--config-file", DEPLOY / "cloud-init.yaml")


def test_user_data_has_the_command_for_notices() -> None:
    command = (DEPLOY / "leaving/aws").read_text().splitlines()
    given = [line.strip() for line in (DEPLOY / "cloud-init.yaml").read_text().splitlines()]
    assert set(given) >= {line for line in command if not line.startswith("# ")}


def test_shells_can_read_the_scripts() -> None:
    for path in (DEPLOY / "leaving").iterdir():
        run("sh", "-n", path)
    run("bash", "-n", DEPLOY / "slurm/dtd.sbatch")


def test_the_image_is_built_from_what_is_there() -> None:
    root = DEPLOY.parents[1]
    for line in (DEPLOY / "container/Containerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (root / name).exists(), line


def test_every_place_grants_the_time_that_its_workers_take() -> None:
    workers = "kubernetes/base/workers.yaml"
    drain_s = number(workers, r'DTD_DRAIN_TIMEOUT_S, value: "(\d+)"')
    assert number(workers, r"terminationGracePeriodSeconds: (\d+)") >= drain_s + 10
    drain_s = number("container/compose.yaml", r"DTD_DRAIN_TIMEOUT_S: (\d+)")
    assert number("container/compose.yaml", r"stop_grace_period: (\d+)s") >= drain_s + 10
    drain_s = number("slurm/dtd.sbatch", r"--drain-timeout-s (\d+)")
    assert number("slurm/dtd.sbatch", r"--signal=B:USR1@(\d+)") >= drain_s + 10
