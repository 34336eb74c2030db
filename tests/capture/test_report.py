"""The report: one safe, self-contained page that shows what the log says and nothing more."""

import html.parser
import lzma
import re
import shutil
from pathlib import Path

import kit
import pytest
from mileskit.log.lineshape import Clock
from mileskit.report import report, reportclock, reporthtml, reportlog

from tests.capture import minilog

KIT = Path(kit.__file__).parent
STORED = KIT / "out-h200-miles"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text; checks that elements are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.words, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def written(tmp_path, *runs, options=()) -> str:
    out = tmp_path / "report.html"
    assert kit.main(["report", *map(str, runs), "-o", str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def log_of(tmp_path, *lines, name="mine.log") -> Path:
    path = tmp_path / name
    path.write_bytes(minilog.text(*lines))
    return path


def steps(n: int, start: float = 100.0) -> list:
    return [
        line
        for k in range(n)
        for line in minilog.rollout(start + 40 * k, k) + minilog.step(start + 20 + 40 * k, k)
    ]


# -- the page ------------------------------------------------------------------------------------


def test_a_report_names_how_the_run_ended_its_command_and_its_start(tmp_path):
    page = Page(written(tmp_path, "h200-miles/plain_s1234"))
    assert "finished, status 0" in page.text
    assert "1,929,501 tokens" in page.text
    assert "--sglang-mem-fraction-static 0.3" in page.text
    assert "580.159.04" in page.text
    assert "seed 1234, rollout seed 42" in page.text


def test_a_report_holds_no_script_and_fetches_nothing(tmp_path):
    text = written(tmp_path, "h200-miles/plain_s1234", "h200-miles/kill_noft")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert name not in ("src", "href", "action"), (tag, name, value)
        assert not name.startswith("on")
        assert "url(" not in (value or "").replace("url(#h-", "")
    assert "@import" not in text
    assert "http" not in reporthtml.style()


def test_the_same_runs_give_the_same_bytes(tmp_path):
    first = written(tmp_path, "h200-miles/n16", "h200-miles/topp2")
    (tmp_path / "report.html").unlink()
    assert written(tmp_path, "h200-miles/n16", "h200-miles/topp2") == first


@pytest.mark.parametrize("name", sorted(p.parent.name for p in STORED.glob("*/run.toml")))
def test_every_stored_run_gives_a_well_formed_page(tmp_path, name):
    page = Page(written(tmp_path, f"h200-miles/{name}"))
    assert f"Run report: h200-miles/{name}" in page.text
    assert "Verdicts" in page.text


def test_both_colour_schemes_and_a_phone_are_served(tmp_path):
    text = written(tmp_path, "h200-miles/smoke")
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in text


def test_every_drawing_says_in_words_what_it_shows(tmp_path):
    page = Page(written(tmp_path, "h200-miles/kill_noft"))
    drawings = page.tags.count("svg")
    said = [v for tag, name, v in page.attributes if tag == "svg" and name == "aria-label"]
    hidden = [v for tag, name, v in page.attributes if tag == "svg" and name == "aria-hidden"]
    assert len(said) + len(hidden) == drawings
    assert all(said)
    assert any(v.startswith("failed requests per minute") for v in said)


# -- hostile input -------------------------------------------------------------------------------

EVIL = "</pre></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def test_a_log_cannot_put_markup_into_the_page(tmp_path):
    lines = [
        f"# run {EVIL}",
        f"# command: python3 train.py --prompt-data '{EVIL}'",
        *steps(3),
        f"{minilog.TRAINER} RuntimeError: CUDA out of memory. {EVIL}",
        f"{minilog.TRAINER} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {EVIL}",
    ]
    text = written(tmp_path, log_of(tmp_path, *lines))
    page = Page(text)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "onerror=alert(2)" in page.text
    assert not any(name.startswith("on") for _, name, _ in page.attributes)


def test_a_metric_or_status_name_from_a_log_cannot_put_markup_into_the_page(tmp_path):
    name = "eval/<script>alert(3)</script>"
    line = minilog.sourced(90, f"eval 0: {{'{name}': 0.5}}", minilog.MANAGER)
    retries = minilog.retry(110, 1, body="<script>alert(4)</script>")
    page = Page(written(tmp_path, log_of(tmp_path, line, *steps(2), retries)))
    assert "script" not in page.tags


def test_control_and_direction_characters_are_not_passed_on():
    assert reporthtml.text("a\x00\x1b[31m\u202eb\ud800<") == "a\ufffd\ufffd[31m\ufffdb\ufffd&lt;"


def test_a_file_name_that_is_no_text_and_a_very_long_run_name_are_shown_safely(tmp_path):
    path = Path(f"{tmp_path}/a\udcff<b>.log")
    path.write_bytes(minilog.text(*steps(2)))
    assert "a\ufffd<b>" in Page(written(tmp_path, path)).text
    long = log_of(tmp_path, "# run " + "x" * 5000, *steps(2))
    page = Page(written(tmp_path, long))
    assert max(map(len, page.words)) < 1000


def test_secrets_of_a_command_are_masked(tmp_path):
    token = "hf_" + "Abcdefghij" * 3 + "Wxyz"
    line = f"# command: python3 train.py --wandb-key {'0123456789abcdef' * 2}12345678 --x {token}"
    text = written(tmp_path, log_of(tmp_path, "# run mine", line, *steps(2)))
    assert token not in text
    assert "0123456789abcdef0123456789abcdef" not in text
    assert "--wandb-key" in text


# -- what is said --------------------------------------------------------------------------------


def test_an_unusable_column_is_not_drawn_and_the_page_says_so(tmp_path):
    page = Page(written(tmp_path, "h200-miles/plain_s1234"))
    assert "rollout/ref_log_probs) is not drawn" in page.text
    assert "train/kl_loss) is not drawn" in page.text
    labels = [v for _, name, v in page.attributes if name == "aria-label"]
    assert not any("KL to the reference" in v for v in labels)


def test_a_shared_gpu_is_marked_at_its_times_and_only_there(tmp_path):
    shared = Page(written(tmp_path, "h200-miles/kill_noft")).text
    alone = Page(written(tmp_path, "h200-miles/plain_s1234")).text
    assert "GPU shared with other work: these times are no timing result" in shared
    assert "what the whole GPU uses holds other work too" in shared
    assert "holds other work too" not in alone
    assert "no timing result" not in alone
    assert "clock unknown" in alone


def test_a_run_with_a_clock_record_shows_clock_and_sampled_memory(tmp_path):
    page = Page(written(tmp_path, "h200-miles/n16"))
    labels = [v for _, name, v in page.attributes if name == "aria-label"]
    assert any(v.startswith("SM clock, MHz over time") for v in labels)
    assert any(v.startswith("sampled GPU memory") for v in labels)
    assert "clock unknown" not in page.text


def test_memory_comes_from_the_log_and_its_peak_is_named(tmp_path):
    page = Page(written(tmp_path, "h200-miles/plain_s1234"))
    raw = lzma.decompress((STORED / "plain_s1234" / "run.log.xz").read_bytes())
    used = [float(v) for v in re.findall(rb"'used_GB': ([0-9.]+)", raw)]
    assert f"most used: {max(used):g} of 139.8 GB" in page.text


def test_a_dead_engine_is_the_verdict_with_its_line_and_retries(tmp_path):
    page = Page(written(tmp_path, "h200-miles/kill_noft"))
    assert "engine-dead" in page.text
    assert "line 1148" in page.text
    assert "10082 failed requests: 10082 with HTTP 503" in page.text


def test_a_paused_step_is_marked_and_the_pause_drawn(tmp_path):
    log = log_of(tmp_path, *steps(3))
    guard = tmp_path / "guard.log"
    guard.write_text(
        "2026-11-29T00:02:20.000Z pause container=m temp_c=84 reason=hot\n"
        "2026-11-29T00:02:22.000Z resume container=m temp_c=74 reason=cool paused_s=2.0\n"
    )
    text = written(tmp_path, log, options=["--heat-guard", str(guard)])
    page = Page(text)
    assert "a pause touches step 1" in page.text
    assert ">paused</text>" in text
    assert ">paused</text>" not in written(tmp_path, log)


def test_values_that_are_not_finite_are_marked_and_named(tmp_path):
    lines = [*steps(2), *minilog.rollout(180, 2), *minilog.step(200, 2, grad="nan")]
    page = Page(written(tmp_path, log_of(tmp_path, *lines)))
    assert "gradient norm: not finite in step 2" in page.text


def test_a_log_without_any_step_still_gives_a_page(tmp_path):
    page = Page(
        written(
            tmp_path,
            log_of(tmp_path, minilog.engine(5, "Load weight begin."), *minilog.retry(9, 1)),
        )
    )
    assert "steps none" in page.text
    assert "not judged: no step in this log" in page.text


@pytest.mark.parametrize("count", [1, 65, 700])
def test_a_run_of_any_number_of_steps_gives_a_page_of_bounded_size(tmp_path, count):
    text = written(tmp_path, log_of(tmp_path, *steps(count)))
    assert f"steps {count} (step 0 to {count - 1})" in Page(text).text
    assert len(text) < 150_000


def test_a_resumed_run_is_drawn_from_its_first_step_on(tmp_path):
    lines = [
        *steps(3),
        *(
            line
            for k in (5, 6, 6)
            for line in (*minilog.rollout(300 + k, k), *minilog.step(300 + k, k))
        ),
    ]
    assert "steps 5 (step 0 to 6)" in Page(written(tmp_path, log_of(tmp_path, *lines))).text


def test_several_runs_stand_side_by_side_without_a_comparative_word(tmp_path):
    text = written(tmp_path, "h200-miles/plain_s1234", "h200-miles/n16", "h200-miles/n4")
    page = Page(text)
    for name in ("plain_s1234", "n16", "n4"):
        assert page.text.count(f"h200-miles/{name}") > 10
    words = set(re.findall(r"[a-z]+", page.text.lower()))
    assert not words & {"faster", "slower", "better", "worse", "best", "improves", "beats"}
    assert "n-samples-per-prompt" in page.text


def test_one_metric_has_one_scale_for_all_runs(tmp_path):
    text = written(tmp_path, "h200-miles/plain_s1234", "h200-miles/kill_noft")
    block = text[text.index("<h3>Reward</h3>") :]
    block = block[: block.index("</section>")]
    axes = [
        re.findall(r'text-anchor="end">([0-9.]+)<', part) for part in block.split("<figure>")[1:]
    ]
    assert len(axes) == 2
    assert axes[0] == axes[1]


def test_two_runs_of_one_name_are_told_apart(tmp_path):
    log = log_of(tmp_path, *steps(2))
    assert "mine (2)" in Page(written(tmp_path, log, log)).text


# -- the file ------------------------------------------------------------------------------------


def test_an_older_report_is_replaced_and_nothing_else(tmp_path, capsys):
    written(tmp_path, "h200-miles/smoke")
    written(tmp_path, "h200-miles/n16")
    assert "n16" in (tmp_path / "report.html").read_text()
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    assert kit.main(["report", "h200-miles/n16", "-o", str(other)]) == 2
    assert other.read_text() == "<p>mine</p>"
    assert "is no report" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["absent.log", "empty.log", "out/absent/report.html"])
def test_bad_input_is_one_line_and_leaves_no_file(tmp_path, capsys, monkeypatch, bad):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.log").write_bytes(b"nothing of Miles\n")
    run, out = ("h200-miles/n16", bad) if bad.endswith("html") else (bad, "report.html")
    code = kit.main(["report", run, "-o", out])
    said = capsys.readouterr().err
    assert code == (3 if bad == "empty.log" else 2)
    assert said.count("\n") == 1
    assert bad.split("/report")[0] in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.log"]


def test_a_failed_write_leaves_the_old_report(tmp_path, monkeypatch):
    before = written(tmp_path, "h200-miles/smoke")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    assert kit.main(["report", "h200-miles/n16", "-o", str(tmp_path / "report.html")]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == before


# -- parts ---------------------------------------------------------------------------------------


def test_a_log_is_read_once_for_summary_guard_and_memory(tmp_path, monkeypatch):
    path = tmp_path / "run.log.xz"
    shutil.copy(STORED / "plain_s4321" / "run.log.xz", path)
    opened = []
    real = reportlog.runload.open_log

    def counted(name):
        opened.append(str(name))
        return real(name)

    monkeypatch.setattr(reportlog.runload, "open_log", counted)
    monkeypatch.setattr(reportlog, "open_log", counted)
    one = reportlog.read(str(path))
    stored = reportlog.read("h200-miles/plain_s4321")
    assert opened.count(str(path)) == 1
    assert one.verdict["verdict"] == stored.verdict["verdict"] == "finished"
    assert one.verdict["last_progress"] == stored.verdict["last_progress"]
    assert (
        len(one.memory) == len(stored.memory) == 3 * stored.loaded.run["timers"]["train"]["n"] + 2
    )


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 18])
def test_memory_lines_are_found_at_any_cut_of_the_stream(size):
    line = (
        b"(T pid=1) [2026-11-29 12:46:58.336 a] m.py:41 - [Rank 0] Memory-Usage after offload"
        b" model: {'gpu': '0', 'used_GB': 3.5}\n"
    )

    class Source:
        data = b"x" * 50 + b"\n" + line + b"y\n" + line.replace(b"3.5", b"4.5")

        def read(self, _):
            part, self.data = self.data[:size], self.data[size:]
            return part

    found = []
    watch = reportlog._Watch(Source(), found)
    while watch.read(0):
        pass
    memory = [reportlog.memory_line(one, Clock()) for one in found]
    assert [m.gb for m in memory] == [{"used_GB": 3.5}, {"used_GB": 4.5}]
    assert memory[0].when == "after offload model"


@pytest.mark.parametrize(
    "tail", [b"{'used_GB': 1e999}", b"{'used_GB': __import__('os')}", b"[", b"{}", b"{" * 900]
)
def test_a_damaged_memory_line_is_no_memory(tail):
    line = b"[2026-11-29 12:46:58.336 a] Memory-Usage after offload model: " + tail
    assert reportlog.memory_line(line, Clock()) is None


def test_failed_requests_are_counted_by_minute_of_the_outage():
    run = {"retries": {"per_second": {"start": "x", "runs": [[2, 59], [5, 2], [0, 119], [1, 1]]}}}
    assert reportclock.per_minute(run) == [2 * 59 + 5, 5, 0, 1]


def test_a_page_is_built_of_views_alone(tmp_path):
    one = reportlog.read("h200-miles/smoke")
    assert report.build([report._view(one, None)]).startswith("<!DOCTYPE html>")
