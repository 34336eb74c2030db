"""A container engine of one's own for tests: a private dockerd, an image, containers that go away.

Needs root, Linux, and the Debian packages docker.io and busybox-static (installed when missing).
Nothing is shared with a daemon that may run on the host: the folder, the socket and the pid file
are private, and everything is taken down by pid and by id. `python tests/containers/rig.py` prints
how long each part takes.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PACKAGES = ("docker.io", "busybox-static")
IMAGE = "miles-101-test/busybox:1"
DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
ENTRYPOINT ["/bin/sh", "-c"]
"""
# A shell as process 1 ignores TERM unless it has a trap; without it every stop takes 10 s.
SHELL = "trap 'exit 0' TERM\n"


class RigError(RuntimeError):
    """The engine could not be brought up; the text says what failed."""


def install_packages() -> None:
    """Install the two packages with apt-get when something of them is missing."""
    busybox = Path("/bin/busybox")
    if shutil.which("dockerd") and shutil.which("runc") and busybox.exists():
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for args in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", "-q", *args], capture_output=True, text=True, env=env)
        if done.returncode:
            raise RigError(f"apt-get {args[0]} failed: {done.stderr.strip()[-500:]}")


class Daemon:
    """One dockerd in a private folder; `start`, `kill` and `start` again keep its containers."""

    def __init__(self):
        # Unix socket paths are short (107 bytes), so not below a long test folder.
        self.folder = Path(tempfile.mkdtemp(prefix="rig-"))
        self.socket = self.folder / "docker.sock"
        self.env = {**os.environ, "DOCKER_HOST": f"unix://{self.socket}"}
        self._process: subprocess.Popen | None = None

    def start(self, wait_s: float = 60.0) -> None:
        """Start it and wait until it answers."""
        at = self.folder
        args = ["dockerd", "--data-root", at / "data", "--exec-root", at / "exec"]
        args += ["--pidfile", at / "dockerd.pid", "-H", f"unix://{self.socket}"]
        args += ["--storage-driver=vfs", "--iptables=false", "--ip6tables=false", "--bridge=none"]
        args += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
        with (at / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, args)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + wait_s
        while self.docker("version", check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > end:
                tail = (at / "dockerd.log").read_text(errors="replace")[-1500:]
                raise RigError(f"dockerd does not answer; the end of its log:\n{tail}")
            time.sleep(0.05)

    def docker(self, *args: str, check: bool = True, **more) -> subprocess.CompletedProcess:
        """Run the client against this daemon."""
        more.setdefault("env", self.env)
        done = subprocess.run(
            ["docker", *args], capture_output=True, text=True, timeout=120, **more
        )
        if check and done.returncode:
            raise RigError(f"docker {' '.join(args)}: {done.stderr.strip()}")
        return done

    def build(self) -> str:
        """Build the test image, whose containers run one shell text, and return its name."""
        context = self.folder / "image"
        context.mkdir()
        shutil.copy("/bin/busybox", context / "busybox")
        (context / "Dockerfile").write_text(DOCKERFILE)
        env = {**self.env, "DOCKER_BUILDKIT": "0"}
        self.docker("build", "-q", "--network=none", "-t", IMAGE, str(context), env=env)
        return IMAGE

    def run(self, command: str, name: str, image: str = IMAGE) -> str:
        """Start a container that runs the shell text `command`; returns its id."""
        args = ("run", "-d", "--network=none", "--name", name, image, SHELL + command)
        return self.docker(*args).stdout.strip()

    def remove(self, *names: str) -> None:
        """Remove containers, paused ones too (their cgroups outlive a killed daemon)."""
        for name in names:
            self.docker("unpause", name, check=False)
            self.docker("rm", "-f", name, check=False)

    def kill(self) -> None:
        """The daemon disappears at once; its containers stay behind until it is back."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """The daemon accepts connections and answers nothing, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Remove every container, end the daemon and its containerd, delete the folder."""
        if self._process is None or self._process.poll() is not None:
            with contextlib.suppress(RigError):
                self.start()
        listed = self.docker("ps", "-aq", check=False).stdout.split()
        self.remove(*listed)
        self._end(signal.SIGTERM)
        for mount in _mounts_below(self.folder):
            subprocess.run(["umount", "-l", mount], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        # The daemon's own containerd dies with it, but while that is a zombie the next daemon takes
        # its pid file for a living one and waits for it in vain.
        for pid_file in ("exec/containerd/containerd.pid", "dockerd.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / pid_file).read_text()), signal.SIGKILL)
            (self.folder / pid_file).unlink(missing_ok=True)


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((p for p in points if p.startswith(f"{folder}/")), reverse=True)


def measure() -> None:
    """Print the seconds of each part of the rig."""
    began = time.monotonic()

    def lap(what: str) -> None:
        nonlocal began
        print(f"{time.monotonic() - began:6.2f} s  {what}", flush=True)
        began = time.monotonic()

    install_packages()
    lap("packages")
    daemon = Daemon()
    try:
        daemon.start()
        lap("daemon answers")
        daemon.build()
        lap("image")
        daemon.run("while :; do sleep 0.1; done", "rig-measure")
        lap("run")
        for verb in ("pause", "unpause", "stop"):
            daemon.docker(verb, "rig-measure")
            lap(verb)
    finally:
        daemon.close()
        lap("close")


if __name__ == "__main__":
    measure()
