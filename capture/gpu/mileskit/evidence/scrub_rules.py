"""The table of what `scrub` masks: one row a shape, with the reason where it needs one.

A rule is a pattern over one line of bytes; what its group `mask` (or `mask2`, ...) holds is
replaced. A match without such a group, or one that `keep` accepts, stays as it is. `hints` are
lower-case literals of which one must occur in the lower-cased line, so that most lines cost
no search.

Lengths are bounded where a pattern would otherwise look through a long line from each of its
starts. Every replacement is such that no rule matches it again. Rules run in table order.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple


class Rule(NamedTuple):
    what: str
    hints: tuple[bytes, ...]
    pattern: re.Pattern
    replacement: bytes
    keep: Callable[[bytes], bool] | None = None

    def span(self, found: re.Match) -> tuple[int, int] | None:
        """Where the text to mask stands in a match; None when nothing is to be masked."""
        for name in self.pattern.groupindex:
            if name.startswith("mask") and found[name] is not None:
                return None if self.keep and self.keep(found[name]) else found.span(name)
        return None


def _rule(what, hints, pattern, replacement, keep=None) -> Rule:
    return Rule(what, tuple(hints), re.compile(pattern), replacement, keep)


@lru_cache(maxsize=4096)
def is_not_public(text: bytes) -> bool:
    """Whether the text is no IP address, or one that nobody outside can reach.

    Loopback, private (RFC 1918), link-local, shared, documentation (RFC 5737) and multicast
    addresses count as not public, as `ipaddress` knows them.
    """
    try:
        address = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return True
    return address.is_multicast or not address.is_global


# A token starts where no letter or digit stands before it, also after an ANSI code or a
# line end that is written as \n.
_START = (
    rb"(?:(?<![A-Za-z0-9])|(?<=\x1b\[m)|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m)"
    rb"|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=\\[nrt]))"
)

_TOKENS = rb"|".join(
    [
        rb"hf_[A-Za-z0-9]{30,}",  # Hugging Face
        rb"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}",  # GitHub
        rb"wandb_v1_[A-Za-z0-9_]{20,}",
    ]
)
_WORDS = rb"|".join(
    [
        rb"glpat-[A-Za-z0-9_-]{18,}",  # GitLab
        rb"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
        rb"nvapi-[A-Za-z0-9_-]{20,}",  # NVIDIA
        rb"pypi-[A-Za-z0-9_-]{40,}",
        # OpenAI, Anthropic and others; the digit keeps words joined by hyphens out.
        rb"sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}",
        rb"A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])",  # AWS
        rb"AIza[A-Za-z0-9_-]{35}",  # Google
        rb"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # JSON web token
    ]
)

# Names in lower case are spelled out, since "key" and "token" are words of language models.
_LOWER = (
    rb"(?:api[_-]?key|(?:access|secret|private|auth|admin|wandb|license|signing|encryption|account"
    rb"|ssh|master)[_-]key(?:[_-]id)?|password|passwd|passphrase|secret|credentials?"
    rb"|(?:auth|access|hf|api|bearer|refresh|github|gh|gitlab|git|wandb|hub|session|bot|security|id"
    rb"|oauth|registry|pypi|npm|slack)[_-]token)"
)
# Names in upper case are environment variables; those of vocabularies and limits stay.
_UPPER = (
    rb"(?:KEY(?:_ID)?|(?<!PAD_)(?<!EOS_)(?<!BOS_)(?<!UNK_)(?<!CLS_)(?<!SEP_)(?<!MASK_)(?<!STOP_)"
    rb"(?<!IMAGE_)(?<!MAX_)(?<!MIN_)(?<!NUM_)(?<!PER_)TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSWORT"
    rb"|_PASS|_PAT|CREDENTIALS?)"
)
_JOIN = rb"(?:\\*[\"'])?[ \t]*(?:=(?!=)|:(?![/:=]))[ \t]*"
_ENV = _UPPER + _JOIN
_FIELD = _LOWER + _JOIN
_OPTION = rb"--(?:[a-z0-9]+-)*" + _LOWER + rb"[ \t]+(?!-)"
_DOTTED = _LOWER + rb" \.{3,} "  # Megatron's table of arguments
_NAMES = rb"(?:" + rb"|".join([_ENV, _FIELD, _OPTION, _DOTTED]) + rb")"

_NOTHING = (
    rb"(?!(?:None|null|nil|[Tt]rue|[Ff]alse|\[\]|\{\}|\(\))(?![A-Za-z0-9_])|\[masked:"
    # Source lines of a traceback hand a name on, they do not show its value.
    rb"|(?:self|args|cls|config|cfg|kwargs|os)\.|(?:str|bytes|Optional)(?![A-Za-z0-9_]))"
)
# A quoted value goes to the quote that opened it, escaped as often; a bare one to a separator.
_VALUE = (
    rb"(?:\"(?!\[masked:)(?P<mask>(?:\\.|[^\"\\\r\n])+)"
    rb"|'(?!\[masked:)(?P<mask2>(?:\\.|[^'\\\r\n])+)"
    rb"|(?P<quote>\\+[\"'])(?!\[masked:)(?P<mask3>(?:(?!(?P=quote))[^\r\n])+)"
    rb"|" + _NOTHING + rb"(?P<mask4>[^\s\"'\\,;&(){}\[\]<>|`]+))"
)
_BARE_WIDE = rb"(?P<mask>[^\s\"'\\]*[^\s\"'\\,;)}\]])"  # a shell's value can hold a comma
_SECRET_HINTS = (b"key", b"token", b"secret", b"passw", b"passphrase", b"credential", b"_pa")

_HOST = rb"(?P<mask>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_KEEP_HOSTS = {b"localhost", b"host", b"hostname", b"None", b"null", b"str"}
_KEEP_ROOT = {b"lab", b"miles", b"Megatron-LM", b"sglang", b"slime", b"DIR"}
_KEEP_HOMES = {b"USER", b"ray"}  # "ray" is the user of Ray's own images


def _is_no_host(name: bytes) -> bool:
    return name in _KEEP_HOSTS or re.fullmatch(rb"[0-9.]+", name) is not None


RULES: tuple[Rule, ...] = (
    _rule(
        "private key",
        [b"private key"],
        rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?!\[masked:)"
        rb"(?P<mask>(?:(?!-----)[^\r\n]){8,})",
        b"[masked:private key]",
    ),
    _rule(
        "authorization header",
        [b"authorization", b"x-api-key", b"cookie"],
        rb"(?i:(?:proxy-)?authorization|x-api-key|(?:set-)?cookie)(?:\\*[\"'])?[ \t]*[:=][ \t]*"
        rb"(?:b?\\*[\"'])?(?:(?i:bearer|basic|token|digest|negotiate)[ \t]+)?"
        rb"(?!\[masked:|(?:None|null)(?![A-Za-z0-9_]))"
        rb"(?P<mask>(?!(?i:bearer|basic|token|digest|negotiate)[ \t])"
        rb"[^\s\"'\\,;]{4,}(?:; ?[^\s\"'\\,;]+)*)",
        b"[masked:authorization]",
    ),
    _rule(
        "authorization header",
        [b"bearer"],
        rb"(?i:bearer)[ \t]+(?P<mask>[A-Za-z0-9._~+/=-]{16,})",
        b"[masked:authorization]",
    ),
    _rule(
        "login in a URL",
        [b"://"],
        rb"[A-Za-z][A-Za-z0-9+.-]{0,30}://(?!\[masked:)(?P<mask>[^\s/\"'<>\\]{1,512}"
        rb"|[^\s/:@\"'<>\\]{1,128}:(?![0-9]{1,5}/)[^\s@\"'<>\\]{1,512})(?=@[A-Za-z0-9\[])",
        b"[masked:login]",
    ),
    _rule(
        "secret in a query",
        [b"="],
        rb"[?&](?:token|key|sig|signature|code|X-Amz-(?:Signature|Credential|Security-Token))="
        rb"(?!\[masked:)(?P<mask>[^\s&\"'<>\\]+)",
        b"[masked:secret]",
    ),
    _rule(
        "token",
        [
            b"hf_",
            b"gh",
            b"github",
            b"wandb_v1",
            b"glpat",
            b"xox",
            b"nvapi",
            b"pypi-",
            b"sk-",
            b"ia",
            b"eyj",
        ],
        rb"(?P<mask>" + _TOKENS + rb")|(?=[gxnpsAe])" + _START + rb"(?P<mask2>" + _WORDS + rb")",
        b"[masked:token]",
    ),
    # A wandb key is bare hex like a commit id, so only its place tells it.
    _rule(
        "token",
        [b"wandb login"],
        rb"wandb login(?:[ \t]+--?[a-z-]+(?:=\S+)?)*[ \t]+[\"']?(?P<mask>[0-9a-f]{40,})",
        b"[masked:token]",
    ),
    _rule("secret value", _SECRET_HINTS, _ENV + _NOTHING + _BARE_WIDE, b"[masked:secret]"),
    _rule("secret value", _SECRET_HINTS, _NAMES + _VALUE, b"[masked:secret]"),
    _rule(
        "user name",
        [b"/home/", b"/users/", b"\\users\\"],
        # Web addresses can hold such a folder too; they name no account of this machine.
        rb"https?://[^\s\"']+|(?:/(?:home|Users)/|[A-Za-z]:\\+Users\\+)(?P<mask>[A-Za-z0-9_][A-Za-z0-9._-]*)",
        b"USER",
        _KEEP_HOMES.__contains__,
    ),
    _rule(
        "user name",
        [b"user", b"logname"],
        rb"(?<![A-Za-z0-9])(?:USER|LOGNAME|USERNAME)(?:\\*[\"'])?(?:=|:[ \t]+)(?:\\*[\"'])?"
        rb"(?!root(?![A-Za-z0-9._-]))(?P<mask>[A-Za-z0-9_][A-Za-z0-9._-]*)",
        b"USER",
        _KEEP_HOMES.__contains__,
    ),
    _rule(
        "folder under /root",
        [b"/root"],
        rb"(?:(?<![A-Za-z0-9_.])|(?<=-[A-Za-z])|(?<=m))/root[/](?P<mask>[A-Za-z0-9_][A-Za-z0-9._-]*)",
        b"DIR",
        _KEEP_ROOT.__contains__,
    ),
    _rule(
        "login",
        [b"@"],
        rb"(?<![A-Za-z0-9_.-])(?!git@)(?P<mask>[A-Za-z_][A-Za-z0-9_-]*@[A-Za-z0-9][A-Za-z0-9.-]*)(?=:[~/])",
        b"[masked:login]",
    ),
    _rule(
        "e-mail address",
        [b"@"],
        rb"(?<![A-Za-z0-9._%+/@-])(?!git@)(?P<mask>[A-Za-z0-9][A-Za-z0-9._%+-]*"
        rb"@(?:[A-Za-z0-9-]{2,}\.)+[A-Za-z]{2,})(?![A-Za-z0-9_])",
        b"[masked:e-mail]",
    ),
    _rule(
        "host name",
        [b"host", b"node"],
        rb"(?i:host_?name|host|node_?name)(?:\\*[\"'])?[ \t]*[=:][ \t]*(?P<quote>\\*[\"'])"
        + _HOST
        + rb"(?=(?P=quote))",
        b"[masked:host]",
        _is_no_host,
    ),
    _rule(
        "host name",
        [b"host", b"node"],
        rb"(?:HOST_?NAME|NODE_?NAME|(?<![A-Za-z0-9])HOST"
        rb"|(?i:host_?name)(?=[=:][ \t]*[A-Za-z-]*[0-9-]))"
        rb"(?:=|:[ \t]+)" + _HOST + rb"(?![A-Za-z0-9._(-])",
        b"[masked:host]",
        _is_no_host,
    ),
    _rule(
        "host name",
        [b"://"],
        # A bare name with a port is a machine of the reader's own network.
        rb"(?<![a-z])[a-z]{1,20}://(?P<mask>[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)(?=:[0-9])",
        b"[masked:host]",
        _is_no_host,
    ),
    _rule(
        "host name",
        [b".internal", b"amazonaws", b"ip-"],
        rb"(?<![A-Za-z0-9_.-])(?P<mask>ip-[0-9]+-[0-9]+-[0-9]+-[0-9]+(?:\.[a-z0-9-]+)*"
        rb"|(?:[a-z0-9-]+\.)+(?:compute|ec2|c\.[a-z0-9-]+|[a-z]+-[a-z]+[0-9](?:-[a-z])?)\.internal"
        rb"|(?:[a-z0-9-]+\.)+compute(?:-1)?\.amazonaws\.com)",
        b"[masked:host]",
    ),
    # Four numbers with dots are also a version: after ==, a letter, a hyphen or the word itself,
    # or before a tail such as .post1 or -py3.
    _rule(
        "IP address",
        [b"."],
        rb"(?<![A-Za-z0-9_.+-])(?<!==)(?<![Vv]ersion[ =])(?<![Vv]ersion: )"
        rb"(?P<mask>[0-9]{1,3}(?:\.[0-9]{1,3}){3})(?![0-9A-Za-z_+]|-[A-Za-z]|\.[0-9A-Za-z])",
        b"[masked:ip]",
        is_not_public,
    ),
    _rule(
        "IP address",
        [b"::", b":"],
        rb"(?<![A-Za-z0-9:.])(?P<mask>[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]+)(?![A-Za-z0-9])",
        b"[masked:ip]",
        is_not_public,
    ),
)
