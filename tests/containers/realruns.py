"""An image that plays Miles, and a lab whose docker is the real client."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.fakes.runlab import RunLab

DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
COPY python python3 git /bin/
"""
# A sandbox without the right to raise limits refuses memlock=-1; everything else stays.
CLIENT = """\
#!/bin/sh
for word; do
    shift
    case $word in --ulimit | memlock=-1) ;; *) set -- "$@" "$word" ;; esac
done
exec {docker} "$@"
"""


def build_image(daemon, context: Path, image: str, python: str) -> str:
    """Build an image with stand-ins for python, git and SGLang's python3; gives its name."""
    context.mkdir()
    shutil.copy("/bin/busybox", context / "busybox")
    (context / "Dockerfile").write_text(DOCKERFILE)
    programs = {"python": python, "python3": "#!/bin/sh\necho 0.5.16\n"}
    programs["git"] = "#!/bin/sh\necho 31f1ca961 2026-08-21 a subject\n"
    for name, text in programs.items():
        (context / name).write_text(text)
        (context / name).chmod(0o755)
    env = {**daemon.env, "DOCKER_BUILDKIT": "0"}
    daemon.docker("build", "-q", "--network=none", "-t", image, str(context), env=env)
    return image


def real_lab(folder: Path, daemon) -> RunLab:
    """A lab whose docker is the real client; nvidia-smi is a stand-in."""
    lab = RunLab(folder)
    (lab.bin / "docker-state").unlink()
    (lab.bin / "docker").write_text(CLIENT.format(docker=shutil.which("docker")))
    lab.env["PATH"] = f"{lab.bin}:{os.environ['PATH']}"
    lab.env["DOCKER_HOST"] = daemon.env["DOCKER_HOST"]
    lab.lab.mkdir()
    return lab
