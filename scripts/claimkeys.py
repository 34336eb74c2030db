"""What the keys of `claims.json` hold. The site prints it, and tests hold the file against it."""

SCHEMA = 1
#: keys of a claim
CLAIM_KEYS = {
    "page": "address of the page that states the number",
    "kind": "`claim`: in the claim of a figure; `figure`: in a figure only; `link`: in the text",
    "stated": "the words of the page; of a claim its whole sentence",
    "figure": "id of the figure behind it, a key of `figures`",
    "value": "name of the value in that figure",
    "anchor": "address of the value on the page of its figure",
    "data": "address of the figure's data, CSV with one heading row",
    "text": "the value as the figure prints it",
    "numbers": "the value as numbers, unrounded: one, the two ends of a range, or none",
    "unit": "unit of `numbers`; empty for a count or a ratio",
    "quantity": "what was measured, the same word on every page; may be empty",
    "tier": "`measured`, `reported`, or `measured and reported`",
    "strength": "runs, seeds and steps behind it, in words",
    "setups": "list of the setups behind it: model, data, GPU, versions",
    "runs": "list of the runs behind it, as LAB/RUN; empty for a published value without a run",
    "recompute": "command that computes the figure again; empty where nothing is stored to do so",
}
#: keys of a figure
FIGURE_KEYS = {
    "pages": "addresses of the pages that show it",
    "tier": "as of a claim, or `diagram`",
    "strength": "runs, seeds and steps behind the whole figure, in words",
    "runs": "list of all runs that it reads",
    "data": "address of its data",
}
