"""The real ``hostctl`` as a process: the commands of this plugin, and a repair over HTTP in the sample repository."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhost.testing import sample
from polyhost.testing.mock_model import MockModelServer, story
from polyhost.wire import json

Hostctl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hostctl(polyhost_home: Path) -> Hostctl:
    """``hostctl(*arguments, input="")`` in the temporary home."""

    def run(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from polyhost.cli import main; sys.exit(main())", *arguments]
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_the_models_of_all_providers_are_listed(
    hostctl: Hostctl, polyhost_home: Path, mock_model: MockModelServer
) -> None:
    (polyhost_home / "config.toml").write_text(mock_model.provider())
    listed = hostctl("models", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = {row["model"]: row for row in json.loads(listed.stdout)}
    assert {"demo/demo", "deepseek-official/deepseek-v4-flash", "mock/mock-small", "mock/mock-large"} <= set(rows)
    assert [model for model, row in rows.items() if row["default"]] == ["mock/mock-large"]
    tested = hostctl("models", "test")
    assert tested.stdout.startswith("mock/mock-large answered 'Hello from the mock model.' in "), tested.stderr


@pytest.mark.contract("KEY-01")
def test_a_stored_key_goes_to_the_endpoint_and_nowhere_else(
    hostctl: Hostctl, polyhost_home: Path, mock_model: MockModelServer
) -> None:
    (polyhost_home / "config.toml").write_text(mock_model.provider(credential="MOCK_KEY"))
    missing = hostctl("models", "test")
    assert missing.returncode != 0
    assert "there is no credential MOCK_KEY" in missing.stderr
    refused = hostctl("auth", "set", "MOCK_KEY", input="sk secret\n")
    assert refused.returncode != 0
    assert "sk secret" not in refused.stdout + refused.stderr
    assert hostctl("auth", "set", "MOCK_KEY", input="  sk-secret \n").returncode == 0
    mock_model.script("auth_error", "success")
    rejected = hostctl("models", "test")
    assert "The API key is not valid." in rejected.stderr
    answered = hostctl("models", "test")
    assert answered.returncode == 0, answered.stderr
    assert [headers["authorization"] for headers in mock_model.headers] == ["Bearer sk-secret"] * 2
    assert "sk-secret" not in rejected.stderr + answered.stdout + answered.stderr
    assert hostctl("auth", "remove", "MOCK_KEY").returncode == 0
    assert hostctl("auth", "remove", "MOCK_KEY").returncode == 1


@pytest.mark.parametrize("offline", [True, False], ids=["demo", "http"])
def test_the_failing_test_of_the_sample_is_repaired(
    hostctl: Hostctl, polyhost_home: Path, mock_model: MockModelServer, tmp_path: Path, offline: bool
) -> None:
    (polyhost_home / "config.toml").write_text('host.model = "demo/demo"' if offline else mock_model.provider())
    mock_model.script(*story())
    workspace = tmp_path / "shop"
    workspace.mkdir()
    sample.create(workspace)
    done = hostctl("run", "--cwd", str(workspace), "--approve", "auto", "fix the failing test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(f"All tests pass now. {sample.SUMMARY}")
    assert sample.MENDED in (workspace / sample.MODULE).read_text()
    assert len(mock_model.requests) == (0 if offline else 5)
