"""The verb `doctor`: each check over recorded outputs, and the whole on stand-ins."""

import json
import subprocess
import sys
import time

import pytest
from mileskit.host import doctor, doctor_probes
from mileskit.host import doctor_checks as checks
from mileskit.host.doctor_checks import FAILING, OK, UNKNOWN, WARNING
from mileskit.host.doctor_probes import Probe

from tests.fakes.lab import ROOT
from tests.fakes.runlab import KIT

RECORDED = ROOT / "tests" / "fixtures" / "doctor"
TIMEOUT = Probe(None, "timeout")
MISSING = Probe(None, "missing")


def recorded(name: str) -> list[dict[str, str]]:
    return checks.gpu_rows(Probe((RECORDED / name).read_text()))


def meminfo(total_gib: float, available_gib: float) -> Probe:
    total, available = (int(gib * 2**20) for gib in (total_gib, available_gib))
    return Probe(f"MemTotal:  {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")


def folder(**facts) -> Probe:
    plain = {"path": "/home/me/x", "exists": True, "folder": True, "uid": 1000, "own_uid": 1000}
    return Probe(json.dumps({**plain, "writable": True, "free": 500 * 10**9, **facts}))


# -- GPU -------------------------------------------------------------------------------------------


def test_an_idle_h200_is_fine_but_cannot_tell_its_clock_under_load():
    rows = recorded("h200-idle.csv")
    assert checks.driver(rows).state == OK
    assert checks.memory(rows, meminfo(126, 120)) == (
        *("memory", OK, "separate: 140 GiB on the GPU, 0.0 GiB used", ""),
    )
    clocks = checks.clocks(rows)
    assert clocks.state == UNKNOWN
    assert "405 MHz of 1980, state P0, 0 % busy" in clocks.found


def test_an_h200_under_load_has_a_good_clock():
    assert checks.clocks(recorded("h200-load.csv")).state == OK
    assert checks.temperature(recorded("h200-load.csv")).found == "50 C"


def test_a_low_clock_under_load_is_a_stuck_power_state():
    row = {**recorded("h200-load.csv")[0], "clocks.sm": "405", "pstate": "P8"}
    line = checks.clocks([row])
    assert line.state == WARNING
    assert "stuck low under load" in line.todo


def test_a_slowdown_is_named():
    line = checks.clocks(recorded("synthetic-gb10-hot.csv"))
    assert (line.state, "slowed by sw-thermal" in line.found) == (WARNING, True)


def test_memory_without_a_size_is_unified_as_on_a_gb10():
    rows = recorded("synthetic-gb10-hot.csv")
    line = checks.memory(rows, meminfo(119.6, 110))
    assert (line.state, line.found) == (
        *(OK, "unified: 120 GiB for CPU and GPU together, 110 GiB available"),
    )


def test_at_84_degrees_the_temperature_warns():
    assert checks.temperature(recorded("synthetic-gb10-hot.csv")).state == WARNING
    row = {**recorded("synthetic-gb10-hot.csv")[0], "temperature.gpu": "83"}
    assert checks.temperature([row]).state == OK


def test_a_missing_field_is_unknown_and_never_zero():
    row = {**recorded("h200-load.csv")[0], "temperature.gpu": "[N/A]", "clocks.sm": "[N/A]"}
    assert checks.temperature([row]).state == UNKNOWN
    assert checks.clocks([row]).state == UNKNOWN


def test_a_small_card_and_a_used_one_warn():
    row = recorded("h200-idle.csv")[0]
    assert checks.memory([{**row, "memory.total": "12288"}], MISSING).state == WARNING
    assert checks.memory([{**row, "memory.used": "20000"}], MISSING).state == WARNING


@pytest.mark.parametrize(("version", "state"), [("580.65.06", OK), ("575.57.08", WARNING)])
def test_a_driver_older_than_cuda_13_warns(version, state):
    assert checks.driver([{"driver_version": version}]).state == state


def test_ray_memory_counts_the_gpu_on_unified_memory_only():
    gb10, h200 = recorded("synthetic-gb10-hot.csv"), recorded("h200-idle.csv")
    none = Probe("")
    assert checks.ray_memory(gb10, meminfo(120, 100), none).state == OK
    assert checks.ray_memory(gb10, meminfo(120, 50), none).state == WARNING
    assert checks.ray_memory(h200, meminfo(120, 50), none).state == OK
    assert checks.ray_memory(h200, meminfo(120, 10), none).state == WARNING
    assert checks.ray_memory(gb10, meminfo(120, 5), none).state == FAILING
    raised = checks.ray_memory(gb10, meminfo(120, 100), Probe("0.99"))
    assert (raised.state, "unset it" in raised.todo) == (WARNING, True)
    assert "above 114 GiB" in checks.ray_memory(gb10, meminfo(120, 100), none).found


def test_a_program_on_the_gpu_is_named():
    line = checks.processes(Probe((RECORDED / "h200-apps-load.csv").read_text()))
    assert (line.state, line.found) == (WARNING, "451 python3")
    assert checks.processes(Probe("\n")).state == OK


def test_nvidia_smi_that_hangs_or_is_missing_is_failing_and_says_so():
    for probe, words in ((TIMEOUT, "does not answer"), (MISSING, "is not there")):
        line = checks.gpu(probe, [])
        assert (line.state, words in line.found) == (FAILING, True)


# -- Docker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "state", "todo"),
    [
        (Probe("28.2.2\n"), OK, ""),
        (MISSING, FAILING, "install"),
        (TIMEOUT, FAILING, "restart"),
        (Probe(None, "status 1: permission denied while trying to connect"), FAILING, "group"),
        (Probe(None, "status 1: Cannot connect to the Docker daemon"), FAILING, "start"),
    ],
)
def test_docker_says_what_is_wrong(probe, state, todo):
    line = checks.docker(probe)
    assert line.state == state
    assert todo in line.todo


def test_the_toolkit_is_found_as_runtime_or_program():
    info = Probe('{"Runtimes": {"runc": {}}, "NCPU": 20}')
    assert checks.toolkit(Probe(""), info).state == FAILING
    assert checks.toolkit(Probe("nvidia-ctk"), info).state == OK
    assert checks.toolkit(Probe(""), Probe('{"Runtimes": {"nvidia": {}}}')).state == OK
    assert checks.toolkit(Probe(""), TIMEOUT).state == UNKNOWN


def test_an_image_for_another_machine_is_failing():
    digest = "radixark/miles@sha256:" + "c6" * 32
    probe = Probe(f'["{digest}"] arm64 sha256:1\n')
    docker = Probe("28.2.2")
    arguments = (docker, Probe("aarch64"), "radixark/miles:latest")
    assert checks.image_line(probe, *arguments) == ("image", OK, f"{digest}, arm64", "")
    wrong = checks.image_line(probe, docker, Probe("x86_64"), "radixark/miles:latest")
    assert wrong.state == FAILING
    gone = checks.image_line(Probe(None, "status 1: No such image: x"), *arguments)
    assert (gone.state, gone.todo) == (WARNING, "docker pull radixark/miles:latest")
    assert checks.image_line(TIMEOUT, *arguments).state == UNKNOWN


# -- host ------------------------------------------------------------------------------------------


def test_a_cache_that_docker_made_as_root_is_failing_with_the_way_out():
    line = checks.folder("download cache", folder(uid=0, writable=False), make=True)
    assert (line.state, "sudo chown" in line.todo) == (FAILING, True)


def test_a_missing_folder_is_to_be_made_before_docker_does():
    line = checks.folder("download cache", folder(exists=False), make=True)
    assert (line.state, line.todo) == (WARNING, "mkdir -p /home/me/x")


@pytest.mark.parametrize(("gb", "state"), [(4, FAILING), (12, WARNING), (100, OK)])
def test_little_room_on_the_disk_warns_before_it_fails(gb, state):
    assert checks.disk("disk", folder(free=gb * 10**9), 5, 20).state == state


def test_without_the_image_docker_needs_room_to_pull_it():
    thirty = folder(free=30 * 10**9)
    assert checks.docker_disk(thirty, Probe("[]")).state == OK
    assert checks.docker_disk(thirty, Probe(None, "no such image")).state == WARNING


def test_fewer_than_three_cpus_warn_wherever_they_are_counted():
    assert checks.cpus(Probe("2"), TIMEOUT).state == WARNING
    assert checks.cpus(Probe("16"), Probe('{"NCPU": 2}')).state == WARNING
    assert checks.cpus(Probe("16"), TIMEOUT).state == OK


def test_a_used_port_is_named():
    line = checks.ports(Probe("6379 free\n8265 used\n"))
    assert (line.state, "8265" in line.found, "6379" in line.found) == (WARNING, True, False)


@pytest.mark.parametrize(("version", "state"), [("3.9.18", FAILING), ("3.10.1", OK)])
def test_python_3_10_is_the_oldest(version, state):
    assert checks.python(Probe(f"{version} /usr/bin/python3")).state == state


# -- the whole -------------------------------------------------------------------------------------

NAMES = (
    *("gpu", "apps", "docker", "info", "image", "running", "container", "meminfo", "cpus"),
    *("toolkit", "python", "machine", "ports", "threshold", "lab", "cache", "docker-root"),
)


@pytest.mark.parametrize("name", NAMES)
def test_one_probe_that_does_not_answer_never_breaks_the_report(name):
    good = {
        "gpu": Probe((RECORDED / "h200-load.csv").read_text()),
        **{"apps": Probe(""), "docker": Probe("28"), "info": Probe("{}"), "running": Probe("")},
        **{"image": Probe('["a@sha256:00"] amd64 sha256:1'), "machine": Probe("x86_64")},
        **{"container": Probe("NVIDIA H200"), "meminfo": meminfo(126, 120), "cpus": Probe("16")},
        **{"toolkit": Probe("nvidia-ctk"), "python": Probe("3.11.7 x"), "threshold": Probe("")},
        "ports": Probe("6379 free"),
        **{name: folder() for name in ("lab", "cache", "docker-root")},
    }
    fine = checks.lines(good, "a")
    assert {line.state for line in fine} == {OK}
    worse = checks.lines({**good, name: TIMEOUT}, "a")
    assert len(worse) == len(fine)
    changed = [line for line, old in zip(worse, fine, strict=True) if line != old]
    assert changed or name in ("machine", "threshold", "toolkit", "info")
    for line in changed:
        assert line.state in (UNKNOWN, FAILING) or name in ("image", "info")


def test_nothing_seen_at_all_is_code_3_and_a_failing_line_code_1():
    line = checks.Line("a", OK, "x")
    unknown, failing = line._replace(state=UNKNOWN), line._replace(state=FAILING)
    assert doctor.exit_code([unknown, unknown]) == 3
    assert doctor.exit_code([unknown, line._replace(state=WARNING)]) == 0
    assert doctor.exit_code([line, failing]) == 1


def test_every_line_that_is_not_ok_says_what_to_do_or_why_it_could_not_look(lab):
    done = lab.kit("doctor", "--json")
    for line in json.loads(done.stdout)["lines"]:
        assert (line["state"] == OK) == (not line["todo"] and "could not look" not in line["found"])


def test_the_report_has_a_line_for_each_check_and_counts_them(lab):
    done = lab.kit("doctor")
    assert done.returncode in (0, 1)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    counted = sum(int(part.split()[0]) for part in lines[-1].split(", "))
    assert counted == len(lines) - 1 == 18
    assert not lab.lab.exists()


def test_a_hanging_nvidia_smi_and_docker_are_waited_for_once_and_together(lab):
    for name in ("docker", "nvidia-smi"):
        (lab.bin / name).write_text("#!/bin/sh\nexec sleep 60\n")
    script = (
        "import sys,pathlib; from mileskit.host import doctor_probes as p;"
        "found=p.look(p.Place(pathlib.Path('/x'),pathlib.Path('/y'),probe_s=1.0));"
        "print([n for n in found if found[n].why=='timeout'])"
    )
    began = time.monotonic()
    env = {**lab.env, "PYTHONPATH": str(KIT.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert time.monotonic() - began < 6
    assert done.stdout.strip() == "['gpu', 'apps', 'docker', 'info', 'image', 'running']"


def test_an_older_driver_is_asked_with_the_older_name_of_the_field(lab):
    text = (RECORDED / "bad-field.txt").read_text()
    (lab.bin / "nvidia-smi").write_text(
        f"#!/bin/sh\ncase $* in *clocks_event*) printf '%s' '{text}'; exit 2;;"
        " *throttle*) echo row;; esac\n"
    )
    assert doctor_probes._gpu(5).out == "row\n"
