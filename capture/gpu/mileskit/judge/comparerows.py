"""A comparison as rows of a CSV."""

from __future__ import annotations

HEAD = ["kind", "quantity", "column", "unit", "step", "side", "run", "minus_run", "value"]


def csv_rows(found: dict) -> list[list]:
    """Long rows of kind value, middle, difference, not-finite, skipped and claim.

    The value of a claim is its word, or "no claim: " and the reasons.
    """
    rows: list[list] = [HEAD]
    for q in found["quantities"]:
        head = [q["id"], q["column"], q["unit"]]
        if "skipped" in q:
            rows.append(["skipped", *head, "", "", "", "", q["skipped"]])
            continue
        for run in q["runs"]:
            pairs = zip(q["steps"], run["values"], strict=True)
            rows += [["value", *head, n, run["side"], run["run"], "", repr(v)] for n, v in pairs]
        for run in q["runs"]:
            rows.append(["middle", *head, "", run["side"], run["run"], "", repr(run["middle"])])
        for name, steps in q["not_finite"].items():
            rows += [["not-finite", *head, n, "", name, "", ""] for n in steps]
        for pair in q["pairs"]:
            steps = zip(q["steps"], pair["differences"], strict=True)
            rows += [
                ["difference", *head, n, "", pair["second"], pair["first"], repr(d)]
                for n, d in steps
            ]
        for claim in q["claims"]:
            word = claim["word"] or f"no claim: {'; '.join(claim['reasons'])}"
            rows.append(["claim", *head, "", claim["side"], "", "", word])
    return rows
