"""The sample repository: one test fails, and the mended line makes all pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from polyhost.testing import sample


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unittest", "-v"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_one_test_fails_until_the_line_is_mended(tmp_path: Path) -> None:
    sample.create(tmp_path)
    before = run_tests(tmp_path)
    assert before.returncode == 1
    assert f"FAIL: {sample.FAILING_TEST}" in before.stderr
    assert before.stderr.count("FAIL:") == 1
    module = tmp_path / sample.MODULE
    module.write_text(module.read_text().replace(sample.BROKEN, sample.MENDED))
    assert run_tests(tmp_path).returncode == 0
