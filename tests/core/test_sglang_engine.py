"""The SGLang client against a replayed exchange. The exchange is synthetic: see its SOURCE line."""

from __future__ import annotations

import copy
import http.server
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from capture.core.engines.http import JsonClient, ServerError
from capture.core.engines.sglang_engine import SGLangEngine, tensor_names
from capture.core.errors import ConfigError, ContractError, PublicationError, RefusedError

FIXTURE = Path(__file__).parent / "fixtures" / "synthetic-sglang-exchange.json"
EXCHANGES = {item["name"]: item for item in json.loads(FIXTURE.read_text())["exchanges"]}
PROMPTS = [[1, 5, 6], [1, 7]]


class Replay(http.server.ThreadingHTTPServer):
    """Answers with given exchanges, in order, and notes the requests."""

    daemon_threads = True

    def __init__(self, exchanges: list[dict]) -> None:
        self.left, self.seen = list(exchanges), []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        self.server.seen.append((self.command, self.path, body))
        exchange = self.server.left.pop(0)
        answer = exchange["answer"]
        if exchange.get("hang"):
            threading.Event().wait(1.0)
            return
        text = exchange.get("raw") or ("" if answer is None else json.dumps(answer))
        self.send_response(exchange["status"])
        if text:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text) + exchange.get("cut", 0)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *arguments):
        pass


@pytest.fixture
def replay():
    servers = []

    def start(*exchanges, **settings):
        items = [EXCHANGES[e] if isinstance(e, str) else e for e in exchanges]
        server = Replay(items)
        servers.append(server)
        pauses = []
        client = JsonClient(server.url, timeout=settings.pop("timeout", 5.0), sleep=pauses.append)
        server.pauses = pauses
        own = SGLangEngine(server.url, eos_ids=[2], client=client, **settings)
        return own, server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def changed(name: str, **changes) -> dict:
    return {**copy.deepcopy(EXCHANGES[name]), **changes}


def tensors():
    import torch

    return [("model.norm.weight", torch.ones(4)), ("lm_head.weight", torch.full((3, 4), 0.1))]


def ask(own, **changes):
    settings = {"n": 2, "max_new_tokens": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    return own.generate(PROMPTS, **{**settings, **changes})


def test_the_fixture_says_that_it_is_synthetic():
    assert FIXTURE.name.startswith("synthetic-")
    assert json.loads(FIXTURE.read_text())["SOURCE"].startswith("Synthetic")


def test_answers_become_generations_in_the_order_of_the_prompts(replay):
    own, server = replay("start", "generate")
    assert own.version == 0
    made = ask(own, version=0)
    assert [r.tokens.tolist() for r in made] == [[9, 2], [8, 8, 8], [4], [3, 2]]
    assert [r.finish for r in made] == ["stop", "length", "abort", "stop"]
    np.testing.assert_array_equal(made[1].logps, np.float32([-1.5, -0.25, -2.0]))
    # the last one ended under version 1: it counts as of the version at its start
    assert [r.versions.tolist() for r in made] == [[0, 0], [0, 0, 0], [0], [0, 0]]
    assert all(r.expert_ids is None for r in made)
    body = server.seen[1][2]
    seeds = [params.pop("sampling_seed") for params in body["sampling_params"]]
    assert body == EXCHANGES["generate"]["request"]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_large_call_is_asked_for_in_batches(replay):
    answers = EXCHANGES["generate"]["answer"]
    halves = [changed("generate", answer=answers[:2]), changed("generate", answer=answers[2:])]
    own, server = replay("start", *halves, batch_size=2)
    assert len(ask(own)) == 4
    assert [len(body["input_ids"]) for _, _, body in server.seen[1:]] == [2, 2]


@pytest.mark.parametrize("status", [503, 500, 429])
def test_a_server_that_is_busy_is_asked_again(replay, status):
    busy = changed("generate", status=status, answer={"error": "busy"})
    own, server = replay("start", busy, busy, "generate")
    assert len(ask(own)) == 4
    assert server.pauses == [1.0, 2.0]
    assert server.seen[1] == server.seen[2] == server.seen[3]


def test_a_server_that_stays_broken_is_an_error_with_its_last_words(replay):
    broken = changed("generate", status=503, answer={"error": "no healthy\nworker"})
    own, server = replay("start", *[broken] * 4)
    with pytest.raises(ContractError, match=r"4 tries, the last status 503: .*no healthy") as error:
        ask(own)
    assert error.value.check == "engine-http"
    assert "\n" not in str(error.value)
    assert len(server.seen) == 5


def test_a_refused_request_is_not_repeated(replay):
    wrong = changed("generate", status=400, answer={"error": {"message": "too long"}})
    own, server = replay("start", wrong)
    with pytest.raises(ContractError, match=r"status 400: .*too long"):
        ask(own)
    assert len(server.seen) == 2


@pytest.mark.parametrize("fault", [{"hang": True}, {"raw": '[{"text": '}, {"cut": 50}])
def test_a_lost_or_cut_answer_is_asked_for_again(replay, fault):
    own, server = replay("start", changed("generate", **fault), "generate", timeout=0.3)
    assert len(ask(own)) == 4
    assert len(server.seen) == 3


def test_no_server_is_one_clear_line():
    client = JsonClient("http://127.0.0.1:9", timeout=0.5, sleep=lambda seconds: None)
    with pytest.raises(ServerError, match="/model_info: 4 tries, the last"):
        SGLangEngine("http://127.0.0.1:9", eos_ids=[2], client=client)


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match=r"engine\.url"):
        JsonClient(url, timeout=1.0)


def test_a_proxy_of_the_environment_is_not_used(replay, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    own, _ = replay("start", "generate")
    assert len(ask(own)) == 4


def wrong_answers():
    def edit(function):
        answer = copy.deepcopy(EXCHANGES["generate"]["answer"])
        function(answer)
        return answer

    meta = lambda a: a[0]["meta_info"]  # noqa: E731
    yield "few", edit(lambda a: a.pop()), "3 answers to 4 requests"
    yield "no list", {"text": "x"}, "dict answers"
    yield "no logps", edit(lambda a: meta(a).pop("output_token_logprobs")), "output_token_logprobs"
    yield "no reason", edit(lambda a: meta(a).update(finish_reason=None)), "without"
    yield "reason", edit(lambda a: meta(a)["finish_reason"].update(type="tired")), "tired"
    yield "ids", edit(lambda a: a[0].update(output_ids=[9, 3])), "disagree"
    yield "null", edit(lambda a: meta(a)["output_token_logprobs"][0].__setitem__(0, None)), "None"
    yield "above 0", edit(lambda a: meta(a)["output_token_logprobs"][0].__setitem__(0, 0.5)), "0.5"
    yield "token", edit(lambda a: meta(a)["output_token_logprobs"][0].__setitem__(1, -1)), "-1"
    yield "version", edit(lambda a: meta(a).update(weight_version="x")), "version x"
    yield "long", edit(lambda a: (a[1].pop("output_ids"),
        a[1]["meta_info"]["output_token_logprobs"].append([-1, 1, None]))), "4 tokens"  # fmt: skip


@pytest.mark.parametrize(("answer", "named"), [w[1:] for w in wrong_answers()],
                         ids=[w[0] for w in wrong_answers()])  # fmt: skip
def test_an_answer_without_sense_is_an_error(replay, answer, named):
    own, _ = replay("start", changed("generate", answer=answer))
    with pytest.raises(ContractError, match=named):
        ask(own)


@pytest.mark.parametrize(("told", "version"), [("default", 0), ("12", 12)])
def test_the_version_at_the_start_is_the_servers(replay, told, version):
    own, _ = replay(changed("start", answer={"weight_version": told}))
    assert own.version == version


@pytest.mark.parametrize("answer", [{}, {"weight_version": "new"}, [1]])
def test_a_server_without_a_usable_version_is_an_error(replay, answer):
    with pytest.raises(ContractError, match="weight_version"):
        replay(changed("start", answer=answer))


def test_another_version_than_expected_asks_for_nothing(replay):
    own, server = replay("start")
    with pytest.raises(ContractError, match="holds version 0, not 3"):
        ask(own, version=3)
    assert len(server.seen) == 1


def test_scores_are_those_of_the_response(replay):
    own, server = replay("start", "score")
    np.testing.assert_array_equal(own.score([1, 5, 6, 9, 2], 3), np.float32([-0.5, -0.125]))
    assert server.seen[1][2] == EXCHANGES["score"]["request"]
    with pytest.raises(RefusedError, match="temperature 1"):
        own.score([1, 5], 1, temperature=0.5)


def test_scores_of_other_tokens_are_an_error(replay):
    own, _ = replay("start", "score")
    with pytest.raises(ContractError, match="scores of tokens"):
        own.score([1, 5, 6, 9, 3], 3)


def test_a_load_writes_shards_the_server_reads_and_takes_the_version(replay, monkeypatch, tmp_path):
    import torch
    from safetensors.torch import load_file

    from capture.core.engines import sglang_engine

    monkeypatch.setattr(sglang_engine, "SHARD_BYTES", 8)  # one tensor a shard
    own, server = replay("start", "pause", "update", "continue", "updated", exchange=tmp_path)
    report = own.load(iter(tensors()), 1)
    assert (own.version, report.tensors, report.bytes) == (1, 2, 64)
    folder = Path(server.seen[2][2].pop("model_path"))
    assert [(m, p, b) for m, p, b in server.seen[1:4]] == [
        (e["method"], e["path"], e["request"])
        for e in (EXCHANGES[name] for name in ("pause", "update", "continue"))
    ]
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 2
    assert tensor_names(folder) == {name for name, _ in tensors()}
    stored = {name: value for file in files for name, value in load_file(file).items()}
    for name, value in tensors():
        assert torch.equal(stored[name], value.to(torch.bfloat16))
    own.close()
    assert not folder.exists()


def test_only_the_newest_weights_stay_on_disk(replay, tmp_path):
    two = changed("updated", answer={"weight_version": "2"})
    one_load = ("pause", "update", "continue")
    own, _ = replay("start", *one_load, "updated", *one_load, two, exchange=tmp_path)
    own.load(iter(tensors()), 1)
    own.load(iter(tensors()), 2)
    assert [folder.name for folder in own._root.iterdir()] == ["000002"]


@pytest.mark.parametrize(("refresh", "aborts"), [("barrier", False), ("drain", True)])
def test_barrier_waits_and_drain_aborts(replay, refresh, aborts, tmp_path):
    own, server = replay("start", "update", "updated", refresh=refresh, exchange=tmp_path)
    own.load(iter(tensors()), 1)
    assert server.seen[1][1] == "/update_weights_from_disk"
    assert server.seen[1][2]["abort_all_requests"] is aborts


def test_a_failed_load_leaves_no_version_and_lets_generation_go_on(replay, tmp_path):
    own, server = replay("start", "pause", "update-fails", "continue", exchange=tmp_path)
    with pytest.raises(PublicationError, match="size mismatch"):
        own.load(iter(tensors()), 1)
    assert server.seen[-1][1] == "/continue_generation"
    assert own.version is None
    with pytest.raises(ContractError, match="engine-version"):
        ask(own)


def test_a_server_that_kept_its_version_is_an_error(replay, tmp_path):
    own, _ = replay("start", "pause", "update", "continue", "start", exchange=tmp_path)
    with pytest.raises(PublicationError, match="version 1 was loaded, the server says 0"):
        own.load(iter(tensors()), 1)
    assert own.version is None


def test_a_stream_without_an_expected_tensor_is_not_sent(replay, tmp_path):
    own, server = replay("start", exchange=tmp_path, expected=["model.norm.weight", "x.weight"])
    with pytest.raises(PublicationError, match=r"x\.weight did not arrive"):
        own.load(iter(tensors()), 1)
    assert own.version == 0  # the server was not touched
    assert len(server.seen) == 1


def test_versions_never_go_back_and_a_name_comes_once(replay, tmp_path):
    own, _ = replay(changed("start", answer={"weight_version": "5"}), exchange=tmp_path)
    with pytest.raises(PublicationError, match="version 4 after version 5"):
        own.load(iter(tensors()), 4)
    with pytest.raises(PublicationError, match="came twice"):
        own.load(iter(tensors() * 2), 6)


def test_the_round_trip_asks_the_servers_own_checker(replay, tmp_path):
    repeated = changed("updated", answer={"weight_version": "0"})
    own, server = replay("start", "snapshot", "reset", "pause", "update", "continue", repeated,
                         "equal", exchange=tmp_path)  # fmt: skip
    own.snapshot()
    own.reset()
    assert own.version is None
    assert own.load(iter(tensors()), 0).repeated_version
    assert own.compare() == []
    assert [body["action"] for _, path, body in server.seen if path == "/weights_checker"] == [
        "snapshot",
        "reset_tensors",
        "compare",
    ]


def test_differences_that_the_server_reports_are_named(replay):
    own, _ = replay("start", "differs")
    found = own.compare()
    assert [(item.name, item.kind) for item in found] == [
        ("model.norm.weight", "value"),
        ("lm_head.weight", "value"),
    ]
    assert found[0].max_abs == 0.75
    assert np.isnan(found[1].max_abs)
    with pytest.raises(RefusedError, match="its own snapshot only"):
        own.compare({"a": 1})


def test_abort_reaches_the_server(replay):
    own, server = replay("start", "abort")
    own.abort()
    assert server.seen[1] == ("POST", "/abort_request", {"abort_all": True})


def server_info(**fields) -> dict:
    return {"status": 200, "answer": {"version": "0", "internal_states": [], **fields}}


@pytest.mark.parametrize("wanted", [False, True])
def test_a_server_with_the_trainers_head_is_taken(replay, wanted):
    info = server_info(enable_fp32_lm_head=wanted)
    own, server = replay(info, "start", fp32_lm_head=wanted)
    assert server.seen[0] == ("GET", "/server_info", None)
    own.close()


def test_a_server_that_has_no_such_setting_has_no_such_head(replay):
    replay(server_info(), "start", fp32_lm_head=False)[0].close()
    with pytest.raises(RefusedError, match="fp32-conflict"):
        replay(server_info(), fp32_lm_head=True)


@pytest.mark.parametrize(
    ("told", "wanted"), [(False, True), (True, False), (1, True), ("true", True), (None, False)]
)
def test_a_server_with_another_head_is_refused(replay, told, wanted):
    with pytest.raises(RefusedError, match="start the server with the trainer's setting"):
        replay(server_info(enable_fp32_lm_head=told), fp32_lm_head=wanted)
