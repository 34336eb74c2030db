"""Secrets, users and hosts are masked in whatever dress they come; the rest of a log stays."""

import io
import lzma
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mileskit.evidence import scrub
from mileskit.evidence.scrub_rules import RULES

pytestmark = pytest.mark.slow  # many made-up secrets, each scrubbed

ROOT = Path(__file__).resolve().parents[2]
LOGS = sorted((ROOT / "capture/gpu").glob("out-*/*/run.log.xz"))
DICT = re.compile(rb" - (?:critic-)?(?:step|rollout|perf|eval|multi_turn) [0-9]+: \{")

# Made-up secrets; joined from parts, so that no scanner takes this file for a leak.
HF = "hf_" + "aBcD" * 9
GHP = "ghp_" + "a1B2" * 9
PAT = "github_pat_" + "11ABCDEFG0_" + "x9" * 20
SK = "sk-" + "proj-" + "a1b2C3d4_-" * 4
AKIA = "AKIA" + "IOSFODNN7EXAMPLE"
HEX40 = "0123456789abcdef" * 2 + "01234567"
JWT = "eyJ" + "hbGciOiJI.eyJ" + "zdWIiOiIx.SflKxwRJSMeKKF2QT4"
WORDY = "correct-horse-battery"


def masked(line: str, words=()) -> str:
    return scrub.scrub_bytes(line.encode(), words).decode()


SECRETS = [
    # shapes, wherever they stand
    (f"login with {HF} now", HF),
    (f"\x1b[32m{HF}\x1b[0m", HF),
    (f"text\\n{GHP}\\n", GHP),
    (f"\x1b[1;32m{SK}\x1b[0m", SK),
    (f"x={PAT}", PAT),
    (f"(Worker pid=1, ip=10.0.0.7) key {AKIA}", AKIA),
    (f"https://user.example.com/?x={JWT}", JWT),
    # wandb: bare hex, told by its place only
    (f"wandb login {HEX40}", HEX40),
    (f"$ wandb login --relogin --host=https://api.wandb.ai {HEX40}", HEX40),
    (f"export WANDB_API_KEY={HEX40}", HEX40),
    (f"python3 train.py --use-wandb --wandb-key {HEX40} --lr 1e-5", HEX40),
    (f"--wandb-key={HEX40}", HEX40),
    (f"  wandb_key ....................................... {HEX40}", HEX40),
    # environment shapes: shell, docker, Python, JSON, JSON inside JSON, YAML
    (f"HF_TOKEN={WORDY} python3 run.py", WORDY),
    (f"docker run -e HF_TOKEN={WORDY} --rm image", WORDY),
    (f'HF_TOKEN="{WORDY} staple" python3 run.py', "staple"),
    (f"environ({{'HF_TOKEN': '{WORDY}', 'HOME': '/root'}})", WORDY),
    (f'{{"env_vars": {{"MY_SECRET": "{WORDY}"}}}}', WORDY),
    (f'--runtime-env-json=\'{{\\"env_vars\\": {{\\"DB_PASSWORD\\": \\"{WORDY}\\"}}}}\'', WORDY),
    (f'\\\\\\"API_KEY\\\\\\": \\\\\\"{WORDY}\\\\\\"', WORDY),
    ('PASSWORD="a\\"b-tail-of-it" x', "tail-of-it"),
    (f"AWS_SECRET_ACCESS_KEY: {WORDY}/+x", WORDY),
    ("DB_PASSWORD=ab,cd;ef&gh python3 x.py", "gh"),
    ("PASSWORD=123456", "123456"),
    (f"api_key='{WORDY}', policy='x'", WORDY),
    (f"RouterArgs(api_key={WORDY}, log_dir=None)", WORDY),
    (f"hf_token: {WORDY}", WORDY),
    (f"--api-key {WORDY}", WORDY),
    (f"--sglang-api-key '{WORDY}'", WORDY),
    (f"GET /v1?token={WORDY}&x=1", WORDY),
    (f"https://b.s3.amazonaws.com/k?X-Amz-Signature={HEX40}&a=1", HEX40),
    (f'HF_TOKEN": "{WORDY}', WORDY),  # cut line: the quote never closes
    # headers
    (f"Authorization: Bearer {WORDY}", WORDY),
    (f"{{'Authorization': 'Bearer {WORDY}', 'x': 'y'}}", WORDY),
    (f"authorization: Basic {WORDY}==", WORDY),
    (f"headers={{'x-api-key': '{WORDY}'}}", WORDY),
    (f"curl -H 'bearer {WORDY}'", WORDY),
    (f"Cookie: session={WORDY}; b={WORDY}x", WORDY),
    # logins in URLs
    (f"http_proxy=http://joe:{WORDY}@proxy.corp.example:3128", WORDY),
    (f"https://{WORDY}@github.com/a/b.git", WORDY),
    (f"redis://:{WORDY}@cache:6379/0", WORDY),
    (f"postgres://joe:p@ss{WORDY}@db/x", WORDY),
    (f"http://joe:pa/{WORDY}@proxy:3128", WORDY),
    # key blocks on one line
    ("-----BEGIN RSA PRIVATE KEY-----\\nMIIEow\\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ("-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEA", "b3BlbnNza"),
    # users
    ("reading /home/joedoe/lab/train.jsonl", "joedoe"),
    ("/Users/joedoe/lab", "joedoe"),
    ("C:\\Users\\joedoe\\lab", "joedoe"),
    ("docker run -v/home/joedoe:/root/lab", "joedoe"),
    ("/mnt/nfs/home/joedoe/x", "joedoe"),
    ("file:///home/joedoe/x", "joedoe"),
    ("\x1b[36m/home/joedoe/x", "joedoe"),
    ("USER=joedoe", "joedoe"),
    ("{'LOGNAME': 'joedoe'}", "joedoe"),
    ("/root" + "/secretproject/x.py", "secretproject"),
    ("joedoe@gpubox:~$ ls", "joedoe@gpubox"),
    ("root@gpubox7:/root/miles# ls", "gpubox7"),
    ("mail joe.doe+lab@some-company.co.uk please", "joe.doe"),
    # hosts
    ("hostname: gpu-box-7", "gpu-box-7"),
    ("HOSTNAME=gpubox", "gpubox"),
    ("{'host': 'gpubox', 'port': 1}", "gpubox"),
    ("node_name='gpubox'", "gpubox"),
    ("url=http://gpubox:30000/generate", "gpubox"),
    ("ip-10-1-2-3.ec2.internal ready", "ip-10-1-2-3"),
    ("ec2-3-4-5-6.eu-west-1.compute.amazonaws.com", "ec2-3-4-5-6"),
    ("trainer-0.us-central1-a.internal", "trainer-0"),
    # public addresses
    ("(Worker pid=1, ip=8.8.8.8) x", "8.8.8.8"),
    ("connect to 8.8.8.8:6379", "8.8.8.8"),
    ("'dist_init_addr': '52.1.2.3:15003'", "52.1.2.3"),
    ("http://52.1.2.3:15000/health.", "52.1.2.3"),
    ("from 8.8.8.8.", "8.8.8.8"),
    ("host [2a00:1450:4001:81b::200e]:80", "2a00:1450"),
]

KEPT = [
    # what language models call keys and tokens
    "Prefill batch, #new-seq: 1, #new-token: 276, #cached-token: 0, token usage: 0.00",
    "pad_token='<pad>', eos_token=\"</s>\", stop_token_ids=[2], token_id=3, max_token=5",
    "PAD_TOKEN=<pad> MAX_TOKEN=8192 EOS_TOKEN='</s>'",
    "tokenizer_path='/lab/model', api_key=None, oracle_password=None, control_plane_api_keys=[]",
    "--input-key prompt --label-key label --max-tokens-per-gpu 8192",
    "api_key=self.api_key, password=args.password, hf_token: str, token: Optional[str]",
    "'password': None, \"secret\": null, API_KEY= , TOKEN=''",
    # hex and long numbers
    f"miles commit {HEX40} sha256 {HEX40}{HEX40[:24]}",
    "Actor(SGLangEngine, db8961b4839c4c03e0918c1801000000) 0x7fab7da45330 1131629136",
    # addresses that stay
    "http://127.0.0.1:3979 0.0.0.0 192.0.2.2:15000 http://10.1.2.3:3000 192.168.0.4 172.16.0.9",
    "169.254.1.1 203.0.113.9 255.255.255.255 999.1.1.1",
    # versions
    "nvidia-cublas-cu12==12.8.4.1 cudnn version 9.1.0.70 x-1.2.3.4 8.8.8.8.post1 1.2.3.4.5",
    "v1.2.3.4",
    # folders inside the container, users of images
    "/root/lab/x /root/miles/train.py /root/.cache/hf /root/Megatron-LM /lab/model /home/ray/x",
    "https://example.org/home/somebody/page git@github.com:radixark/miles.git",
    # other at-signs and words
    "'eval/gsm8k/pass@1': 0.5, 'passrate/pass@16': 0.7, npm i package@1.2.3",
    "def f(host: str, port: int): socket(host=host, hostname=socket.gethostname())",
    "The hostname of the client socket cannot be retrieved. err=-3",
    "sglang::scheduler ray::IDLE std::vector 12:44:28 dead:beef::1",
    "bearer of bad news; risk-averse-and-long-words-joined task-1234567890123456789012",
    "http://localhost:8000/ http://docs.example.com:80/x host='0.0.0.0' host=None",
]


@pytest.mark.parametrize(("line", "secret"), SECRETS, ids=[s[0][:40] for s in SECRETS])
def test_a_secret_is_masked_and_counted(line, secret):
    scrubber = scrub.Scrubber()
    once = scrubber.line(line.encode()).decode()
    assert secret not in once
    assert sum(mask.count for mask in scrubber.masks()) >= 1
    for mask in scrubber.masks():
        assert mask.replacement in once


@pytest.mark.parametrize(("line", "secret"), SECRETS, ids=[s[0][:40] for s in SECRETS])
def test_scrubbing_twice_is_scrubbing_once(line, secret):
    once = masked(line)
    assert masked(once) == once


@pytest.mark.parametrize("line", KEPT)
def test_what_is_no_secret_stays_byte_for_byte(line):
    assert masked(line) == line


@pytest.mark.parametrize("line", [s[0] for s in SECRETS])
def test_the_hints_of_a_rule_hide_no_match(line):
    for rule in RULES:
        if any(rule.span(found) for found in rule.pattern.finditer(line.encode())):
            assert any(hint in line.lower().encode() for hint in rule.hints), rule.what


@given(st.lists(st.sampled_from([s[0] for s in SECRETS] + KEPT), min_size=2, max_size=4))
def test_scrubbing_joined_lines_twice_is_scrubbing_once(parts):
    once = masked(" ".join(parts))
    assert masked(once) == once


@given(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"")))
def test_any_bytes_pass_through_and_hide_no_token(noise):
    line = noise + b" " + HF.encode() + b" " + noise + b"\n"
    once = scrub.scrub_bytes(line)
    assert HF.encode() not in once
    assert scrub.scrub_bytes(once) == once


def test_what_stands_around_a_secret_stays():
    line = f"python3 x.py --wandb-key {HEX40} --lr 1e-5 # /home/joe/a\n"
    assert masked(line) == "python3 x.py --wandb-key [masked:secret] --lr 1e-5 # /home/USER/a\n"


def test_masks_name_kind_replacement_and_count():
    scrubber = scrub.Scrubber(["gpubox"])
    for line in (b"8.8.8.8 and 8.8.4.4\n", b"on GpuBox-1\n", b"clean\n"):
        scrubber.line(line)
    assert scrubber.masks() == [("IP address", "[masked:ip]", 2), ("word", "[masked:word]", 1)]


def test_a_word_is_masked_as_a_whole_word_only():
    assert masked("joe said joel at JOE's box, /data/joe_2", ["joe"]) == (
        "[masked:word] said joel at [masked:word]'s box, /data/[masked:word]_2"
    )


@pytest.mark.parametrize("word", ["ab", "mask", "TOKEN", "ip]"])
def test_a_word_that_would_hit_the_masks_themselves_is_refused(word):
    with pytest.raises(scrub.ScrubError):
        scrub.Scrubber([word])


def test_a_private_key_block_is_masked_line_by_line_under_any_prefix():
    body = ["MIIEowIBAAKCAQEA" * 4, "b3BlbnNzaC1rZXkt" * 4, "Zm9v=="]
    prefix = "\x1b[36m(Worker pid=1)\x1b[0m "
    lines = [
        "-----BEGIN RSA PRIVATE KEY-----",
        body[0],
        "[2026-11-29 12:45:11] other writer",
        *body[1:],
        "-----END RSA PRIVATE KEY-----",
        "successfully",
    ]
    once = masked("".join(f"{prefix}{line}\n" for line in lines))
    assert not any(part in once for part in body)
    assert once.count("[masked:private key]") == 3
    assert "other writer" in once
    assert once.endswith("successfully\n")
    assert masked(once) == once


def test_a_public_key_and_a_certificate_stay():
    block = "-----BEGIN PUBLIC KEY-----\n" + "MIIEowIBAAKCAQEA" * 4 + "\n-----END PUBLIC KEY-----\n"
    assert masked(block) == block


@pytest.mark.slow
@pytest.mark.parametrize("path", LOGS, ids=[p.parent.name for p in LOGS])
def test_the_stored_logs_hold_nothing_to_mask(path):
    with lzma.open(path) as stream:
        data = stream.read()
    out = io.BytesIO()
    masks = scrub.scrub(io.BytesIO(data), out)
    assert masks == []
    assert out.getvalue() == data


def test_metric_lines_of_the_stored_logs_stay_when_every_secret_stands_around_them():
    """The rules leave metric dicts alone also while they mask lines beside them."""
    assert len(LOGS) >= 12
    with lzma.open(next(p for p in LOGS if p.parent.name == "plain_s1234")) as stream:
        dicts = [line for line in stream if DICT.search(line)]
    assert len(dicts) == 80
    secrets = [(s[0] + "\n").encode() for s in SECRETS]
    mixed = [line for i, d in enumerate(dicts) for line in (secrets[i % len(secrets)], d)]
    out = scrub.scrub_bytes(b"".join(mixed)).split(b"\n")
    assert [line + b"\n" for line in out if DICT.search(line)] == dicts


UNITS = [
    "a-", "A_", "KEY", "api_key_", "a@b.", "a://b:", "http://x@", "1.1.1.1.", "2a00:", '\\"', "'",
    "host=", "/home/", "sk-a", "eyJaaaaaaaa.", "wandb login -", "bearer ", "cookie: a; ", "secret=",
    "-----BEGIN A PRIVATE KEY-----", "api_token    ", "ip-1-1-1-1.a.", "a-b.ec2.", '"KEY": "', " ",
    "x", "A1", "a.", "_", "(", "[", "\\", "1", "=", "x.y:", "/a", "+", "-----", "\x1b[0m",
]  # fmt: skip


HINTS = " ".join(sorted({hint.decode() for rule in RULES for hint in rule.hints}))


@pytest.mark.parametrize("unit", UNITS)
def test_no_long_line_takes_time_out_of_proportion(unit):
    """Four times the length may take four times as long, not sixteen times."""

    def seconds(size):
        line = (unit * (size // len(unit)) + HINTS).encode()
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            scrub.scrub_bytes(line)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(1 << 15) < 10 * max(seconds(1 << 13), 1e-3)


class Counting(io.RawIOBase):
    """A readable stream of n bytes made by a function, so that nothing large is held."""

    def __init__(self, chunk: bytes, times: int, tail: bytes):
        self.parts = iter([chunk] * times + [tail])
        self.held = b""

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.held:
            self.held = next(self.parts, b"")
        n = min(len(buffer), len(self.held))
        buffer[:n], self.held = self.held[:n], self.held[n:]
        return n


class Longest(io.RawIOBase):
    """A sink that remembers the longest write and whether a text passed."""

    def __init__(self, text: bytes):
        self.text, self.seen, self.longest, self.total, self.end = text, False, 0, 0, b""

    def write(self, data):
        self.seen |= self.text in self.end + data
        self.longest = max(self.longest, len(data))
        self.total += len(data)
        self.end = data[-100:]
        return len(data)


@pytest.mark.slow
def test_a_line_of_many_megabytes_is_masked_in_pieces():
    part = b"word, " * 999 + f"HF_TOKEN={WORDY} ".encode()
    size = len(part) * 500
    sink = Longest(WORDY.encode())
    masks = scrub.scrub(io.BufferedReader(Counting(part, 500, b"end\n")), sink)
    assert [m.count for m in masks] == [500]
    assert not sink.seen
    assert sink.longest <= 2 * scrub.PIECE
    assert sink.total == size + 4 - 500 * (len(WORDY) - len("[masked:secret]"))


def test_a_secret_across_the_end_of_a_piece_is_masked(monkeypatch):
    monkeypatch.setattr(scrub, "PIECE", 512)
    monkeypatch.setattr(scrub, "WINDOW", 400)
    monkeypatch.setattr(scrub, "MARGIN", 100)
    for shift in range(60):
        line = b"x" * (300 + shift) + f" --wandb-key {HEX40} Bearer {WORDY}-long ".encode() * 9
        out = io.BytesIO()
        scrub.scrub(io.BytesIO(line), out)
        assert HEX40[:12].encode() not in out.getvalue()
        assert WORDY.encode() not in out.getvalue()
        assert out.getvalue() == scrub.scrub_bytes(line)


def test_a_line_without_a_place_to_cut_is_refused(monkeypatch):
    monkeypatch.setattr(scrub, "LONGEST", 1 << 21)
    with pytest.raises(scrub.ScrubError, match="without a place to cut"):
        scrub.scrub(io.BytesIO(b"x" * (1 << 22)), io.BytesIO())
