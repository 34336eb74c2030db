"""What a contract record says about routers is checked against everything it follows from."""

import pytest
from contract_records import records

from capture.core.contractschema import TrainingRecord
from capture.core.verifychecks import agreement_checks, follow_checks, record_checks

LAYERS, EXPERTS, TOPK = 3, 8, 2


def routed(record: TrainingRecord) -> dict:
    """The record of a model with experts that replays, as plain data."""
    document = record.plain()
    document.pop("digest")
    counts = document["counts"]
    recorded = counts["global_model_tokens"] - counts["global_samples"]
    document["router"] = {
        "grouping": "sequence",
        "count_source": "router_selected",
        "replayed": True,
        "experts": EXPERTS,
        "choices": TOPK * counts["global_model_tokens"],
        "imbalance": [1.5, 1.0, 4.0],
        "idle": [1, 0, 6],
        "recorded": recorded,
        "disagreement": [0.0, 3 / recorded, 1.0],
    }
    return document


@pytest.fixture
def documents():
    return [routed(row[0]) for row in records(2, world_size=1)]


def problems(document) -> dict[str, str]:
    found: dict[str, str] = {}
    for check, detail in record_checks(TrainingRecord.model_validate(document)):
        found[check] = f"{found.get(check, '')}\n{detail}"
    return found


def test_a_right_record_passes_with_and_without_replay(documents):
    first, second = documents
    assert problems(first) == {}
    for key in ("recorded", "disagreement"):
        second["router"].pop(key)
    second["router"]["replayed"] = False
    assert problems(second) == {}
    assert "recorded" not in TrainingRecord.model_validate(second).plain()["router"]


@pytest.mark.parametrize(
    ("check", "said", "changes"),
    [
        ("router", "choices of", {"choices": 7}),
        ("router", "experts", {"choices": 9 * 10**6}),
        ("router", "idle of 2", {"idle": [0, 0]}),
        ("router", "layer 0: imbalance 1.5 with 7", {"idle": [7, 0, 6]}),
        ("router", "layer 0: imbalance 4.5", {"imbalance": [4.5, 1.0, 4.0]}),
        ("router", "layer 2: imbalance 3.0", {"imbalance": [1.5, 1.0, 3.0]}),
        ("router", "recorded tokens", {"recorded": 5}),
        ("router", "disagreement of 2 layers", {"disagreement": [0.0, 1.0]}),
        ("router", "layer 0: disagreement", {"disagreement": [1e-4, 0.0, 0.0]}),
        ("router", "replayed is False", {"replayed": False}),
        ("router", "disagreement None", {"disagreement": None}),
    ],
)
def test_a_wrong_load_is_found(documents, check, said, changes):
    documents[0]["router"].update(changes)
    assert said in problems(documents[0])[check]


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("negative", lambda terms: terms[1].update({"local": -1.0, "global": -1.0})),
        ("above its bound", lambda terms: terms[0].update({"local": 0.13, "global": 0.13})),
        ("beside a router block", lambda terms: terms.pop()),
        ("beside a router block", lambda terms: terms.clear()),
    ],
)
def test_router_losses_that_no_router_has_are_found(documents, said, change):
    change(documents[0]["auxiliary"])
    assert said in problems(documents[0])["auxiliary"]


def test_a_run_keeps_its_router_settings_and_its_ranks_agree(documents):
    before, after = (TrainingRecord.model_validate(document) for document in documents)
    assert "router" not in dict(follow_checks(before, after))
    for changes in ({"grouping": "pack"}, {"count_source": "executed"}, {"experts": 9}):
        changed = {**documents[1], "router": {**documents[1]["router"], **changes}}
        assert "router" in dict(follow_checks(before, TrainingRecord.model_validate(changed)))
    other = {**documents[0], "router": {**documents[0]["router"], "idle": [0, 1, 6]}}
    found = dict(agreement_checks(before, TrainingRecord.model_validate(other)))
    assert "router" in found["ranks"]
