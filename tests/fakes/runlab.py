"""A lab folder, and stand-ins for docker (with `run`) and nvidia-smi, for the runner's tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from mileskit.host import runlive

from tests.fakes.lab import HERE, ROOT, FakeLab

KIT = ROOT / "capture" / "gpu" / "kit.py"
DIGEST = "radixark/miles@sha256:" + "c6" * 32
GPU = "NVIDIA H200, 580.159.04, 143771 MiB, 4 MiB"
GPU_NOW = "0, NVIDIA H200, 580.159.04, 143771, 4, 40, P0, 1980, 1980, 0, 120.5, 0x0"
QUICK = runlive.Timing(poll=0.02, appear=10, grace=1, settle=10, heat=0.6, after=0.2, again=0.3)
SMI = """\
#!/bin/sh
case $* in
*compute-apps*) cat "$FAKE_LAB/apps" 2>/dev/null ;;
*compute_cap*) echo 9.0 ;;
*pstate*) cat "$FAKE_LAB/gpu-doctor" ;;
*memory.total*) cat "$FAKE_LAB/gpu-run" ;;
*) exec "$(dirname "$0")/nvidia-smi-heat" "$@" ;;
esac
"""


class RunLab(FakeLab):
    """`self.lab` is the lab folder of the host, everything else is as in FakeLab."""

    def __init__(self, folder: Path):
        super().__init__(folder, programs=())
        shutil.copy(HERE / "docker", self.bin / "docker-state")
        shutil.copy(HERE / "docker-run", self.bin / "docker")
        shutil.copy(HERE / "nvidia-smi", self.bin / "nvidia-smi-heat")
        (self.bin / "nvidia-smi").write_text(SMI)
        (self.bin / "nvidia-smi").chmod(0o755)
        self.lab = folder / "lab"
        self.runs = self.lab / "runs"
        self.env = {k: v for k, v in self.env.items() if not k.startswith("MILES_")}
        self.env["HOME"] = str(folder)
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
        self.set("image", f'["{DIGEST}"] {machine} sha256:1mage\n')
        self.set("commit", "31f1ca961 2026-08-21 a subject\n")
        self.set("sglang", "0.5.16\n")
        self.set("gpu-run", GPU + "\n")
        self.set("gpu-doctor", GPU_NOW + "\n")
        self.set("apps")
        self.set("output", "# run plain\n# date 2026-11-29T13:27:19Z\n")
        self.gpu("0, 60, 1980, 600.5, 70211, 100, 0x0000000000000004")

    def set(self, name: str, text: str | bytes = "") -> None:
        """Write a file that the stand-ins read."""
        data = text if isinstance(text, bytes) else text.encode()
        (self.folder / name).write_bytes(data)

    def unset(self, name: str) -> None:
        (self.folder / name).unlink()

    def words(self, verb: str, *args: str, place: bool = True) -> list[str]:
        """The words of one verb of the kit on this lab."""
        where = ["--lab", str(self.lab)] if place else []
        return [sys.executable, str(KIT), verb, *args, *where]

    def kit(self, verb: str, *args: str, place: bool = True, **env: str):
        """Run one verb to its end."""
        return subprocess.run(
            self.words(verb, *args, place=place),
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
