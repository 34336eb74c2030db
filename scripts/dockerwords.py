"""Docker command lines: subcommands, options and image names that a page may print."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Source: `docker --help` and `docker SUBCOMMAND --help` of Docker 28.
SUBCOMMANDS = frozenset(
    (
        *("attach", "build", "buildx", "commit", "compose", "context", "cp", "create", "diff"),
        *("events", "exec", "export", "history", "images", "import", "info", "inspect", "kill"),
        *("load", "login", "logout", "logs", "manifest", "network", "pause", "port", "ps", "pull"),
        *("push", "rename", "restart", "rm", "rmi", "run", "save", "search", "start", "stats"),
        *("stop", "system", "tag", "top", "unpause", "update", "version", "volume", "wait"),
    )
)
_GROUPS = ("container", "image")  # `docker container run` is `docker run`
_RUN_VALUES = (
    *("--name", "--gpus", "--ipc", "--shm-size", "--ulimit", "-v", "--volume", "--mount", "-e"),
    *("--env", "--env-file", "-w", "--workdir", "-u", "--user", "--network", "--entrypoint"),
    *("--memory", "-m", "--cpus", "-p", "--publish", "--label", "--pid", "--restart", "--device"),
    *("--memory-swap", "--cap-add", "--security-opt", "--platform", "--pull", "--hostname", "-h"),
    *("--stop-timeout", "--stop-signal", "--add-host", "--runtime", "--log-driver", "--log-opt"),
)
_RUN_SWITCHES = ("--rm", "-d", "--detach", "-i", "-t", "-it", "-ti", "--init", "--privileged")
#: subcommand -> (options with a value, switches)
OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (_RUN_VALUES, _RUN_SWITCHES),
    "create": (_RUN_VALUES, _RUN_SWITCHES),
    "exec": (
        ("-e", "--env", "--env-file", "-u", "--user", "-w", "--workdir"),
        ("-d", "--detach", "-i", "-t", "-it", "-ti", "--privileged"),
    ),
    "stop": (("-t", "--time", "--timeout", "-s", "--signal"), ()),
    "restart": (("-t", "--time", "--timeout", "-s", "--signal"), ()),
    "kill": (("-s", "--signal"), ()),
    "pull": (("--platform",), ("-q", "--quiet", "-a", "--all-tags")),
    "logs": (
        ("--since", "--until", "-n", "--tail"),
        ("-f", "--follow", "-t", "--timestamps", "--details"),
    ),
    "ps": (
        ("-f", "--filter", "--format", "-n", "--last"),
        ("-a", "--all", "-q", "--quiet", "-l", "--latest", "-s", "--size", "--no-trunc"),
    ),
    "inspect": (("-f", "--format", "--type", "--platform"), ("-s", "--size")),
    "rm": ((), ("-f", "--force", "-v", "--volumes", "-l", "--link")),
    "start": ((), ("-a", "--attach", "-i", "--interactive")),
    "images": (("-f", "--filter", "--format"), ("-a", "--all", "-q", "--quiet", "--digests")),
    "info": (("-f", "--format"), ()),
    "version": (("-f", "--format"), ()),
    "pause": ((), ()),
    "unpause": ((), ()),
    "wait": ((), ()),
}
#: the images that the pages may name; a digest of one is fine too
IMAGES = ("radixark/miles",)
_IMAGE = re.compile(
    r"(?P<name>[\w./-]+?)(?::(?P<tag>[\w.-]+))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)
_WITH_IMAGE = ("run", "create", "pull")


@dataclass(frozen=True)
class Docker:
    """A docker command: what is wrong with it, its `-e` settings and the command it runs."""

    problems: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    inner: tuple[str, ...] = ()


def read(words: list[str]) -> Docker:
    """Read `docker ...` word by word."""
    rest = words[1:]
    name = rest.pop(0) if rest else ""
    image_group = name == "image"
    if name in _GROUPS:
        name = rest.pop(0) if rest else ""
    if name not in SUBCOMMANDS:
        return Docker((f"docker has no command {name!r}",))
    if name not in OPTIONS:
        return Docker()
    with_value, switches = OPTIONS[name]
    problems: list[str] = []
    env: list[tuple[str, str]] = []
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        option, equals, value = rest[at].partition("=")
        if option in with_value:
            if not equals:
                at += 1
                value = rest[at] if at < len(rest) else ""
            if option in ("-e", "--env"):
                setting, _, text = value.partition("=")
                env.append((setting, text))
        elif option not in switches:
            problems.append(f"docker {name} has no option {option}")
            return Docker(tuple(problems), tuple(env))
        at += 1
    named = rest[at] if at < len(rest) else ""
    if not named and (name in _WITH_IMAGE or name in ("exec", "stop", "kill")):
        what = "image" if name in _WITH_IMAGE else "container"
        return Docker((*problems, f"docker {name} names no {what}"), tuple(env))
    if named and (name in _WITH_IMAGE or image_group):
        problems += image_problems(named)
    inner = rest[at + 1 :] if name in ("run", "create", "exec") else []
    return Docker(tuple(problems), tuple(env), tuple(inner))


def image_problems(image: str) -> list[str]:
    """Why an image is none that the pages use; a name with `$` or in capitals is the reader's."""
    if "$" in image or image.isupper():
        return []
    match = _IMAGE.fullmatch(image)
    if match is None or match["name"] not in IMAGES:
        return [f"the pages use no image {image!r}; known: {', '.join(IMAGES)}"]
    if match["tag"] not in (None, "latest"):
        return [f"the pages use no tag {match['tag']!r} of {match['name']}"]
    return []
