"""Messages whose words are no evidence: arguments, commands, prompts, and notices of a program
that met a condition and went on.
"""

from __future__ import annotations

import re

# What follows such a beginning is a prompt, an answer, code, arguments or a command.
_BEGINNINGS = (
    # records of Miles and SGLang that carry a sample, a request or their own settings
    rb"First rollout sample:|Finish rollout:|eval_rollout|text_preview=|prompt[=:]|Receive: "
    rb"|[Tt]ool(?: \w+)?: ",
    rb"Finish: |server_args=|Launch router with args|Ignore import error|[Aa]rguments?[:=]",
    # lines of a traceback, and the wrapper that repeats the command it ran
    rb"raise |File \"|return |assert |subprocess\.CalledProcessError|Command '",
    # the launcher's echo, a comment, a shell's trace, an option on a line of its own
    rb"EXEC:|# |\++ |\s*--?[A-Za-z]|(?:[Cc]ommand|[Cc]md|CMD|[Ee]ntrypoint)[:=] ",
    # a command: an interpreter or tool with what it is to run, or variables set before it
    rb"(?:\S*/)?(?:python[\d.]*|bash|sh|torchrun|nohup|exec|export|cd)\s",
    rb"(?:\S*/)?(?:ray (?:job|start|stop|submit)|docker (?:run|exec|compose)|env \w+=)",
    rb"[A-Z][A-Z0-9_]{2,}=\S",
    # Megatron's dump of arguments: name, dots, value
    rb"\s*[\w.-]+ ?\.{3,} ",
    # Python objects, dicts and YAML: Name(..., {'key': ..., 'key': ..., key: '...', a_key: ...
    rb"\w*(?:Args|Arguments|Config|Namespace)\(|[{\[]\s*['\"]|\s*['\"][\w./-]+['\"]\s*:",
    rb"\s*(?!error|fatal|exception)[a-z][\w-]*: ['\"]|\s*(?!oom_reaper)[a-z]+_\w*: (?!error)",
    rb"(?!\w*(?:Error|Exception))(?:[Rr]untime[ _]env|[Cc]onfig|[Aa]rgs|[Oo]ptions|[Ss]ettings"
    rb"|[Kk]wargs|[Ee]nv)\w*[^:=]{0,20}[:=]",
    rb"wandb: (?!ERROR|WARN)",
)
CARRIES_TEXT = re.compile(b"|".join(_BEGINNINGS))
# Signs of a prompt or an answer anywhere in a message.
TEXT_SIGN = re.compile(rb"<\|im_(?:start|end)\|>|text_preview=|'content': |<\|endoftext\|>")

# A port found taken that ends nothing: the program takes another one (or the next address
# family: c10d warns with "[W", then listens on IPv4), waits for it (SGLang's
# wait_port_available; it raises after 30 rounds), or is an agent of Ray's dashboard, which Ray
# restarts (ray#15346, ray#17498, ray#27736).
_OTHER_PORT = re.compile(
    rb"instead|another port|next port|trying|[Ww]aiting|could not find the process"
    rb"|[Dd]ashboard|agent_manager|[Aa]gent (?:on node \S+ )?failed|server_chttp2"
    rb"|\A(?:\[rank\d+\]:? ?)?\[W[\d ]|\A\(raylet"
)
# SGLang prints the command line of the process that holds the port.
_OTHER_COMMAND = b"process.cmdline()"


def other_port(head: bytes) -> bool:
    """Whether a message about a taken port says that this ended nothing."""
    return _OTHER_PORT.search(head.partition(_OTHER_COMMAND)[0]) is not None


def is_carried(head: bytes) -> bool:
    """Whether a message is a command or data; a backslash at its end continues a command."""
    return CARRIES_TEXT.match(head) is not None or head.endswith(b"\\")
