"""The files of docs/deploy: what their own tools say of them, and what they must agree on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "docs/deploy"


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


@needs("kubectl", "kubernetes-validate")
@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_kubernetes_accepts_the_manifests(overlay: str, tmp_path: Path) -> None:
    built = tmp_path / "built.yaml"
    built.write_text(run("kubectl", "kustomize", DEPLOY / "kubernetes" / overlay))
    run("kubernetes-validate", "--strict", built)


@needs("ansible-playbook")
def test_ansible_can_read_the_playbook() -> None:
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
