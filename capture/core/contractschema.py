"""The schema of a training contract record: what one rank says about one optimizer step.

Local objectives are scaled by world size over the global denominator: their mean over ranks is the
global objective, and no local value is a global one. `contract` reads and writes such records.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_serializer

from .histogram import BINS

SCHEMA = 2

LARGEST = 2**53 - 1
"""Of whole numbers; every JSON reader holds these exactly."""

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Weight = Annotated[float, Field(ge=0.0)]


class Part(BaseModel):
    """A table of the record: exact types, finite numbers, no unknown key, not changeable."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        serialize_by_alias=True,
    )


class Counts(Part):
    """What the step consumed. Padding and filler forwards are in no count but `accumulation`."""

    global_samples: Positive = Field(description="responses over all ranks")
    global_active_tokens: Positive = Field(description="response tokens in the loss, all ranks")
    global_model_tokens: Positive = Field(description="prompt and response tokens, all ranks")
    local_samples: Count = Field(description="responses of this rank")
    local_active_tokens: Count = Field(description="response tokens in the loss, this rank")
    local_model_tokens: Count = Field(description="prompt and response tokens, this rank")
    accumulation: Positive = Field(description="forwards and backwards of this rank, fillers too")


class Denominators(Part):
    """What the sums of the step are divided by, over all ranks."""

    reduction: Literal["token", "response"] = Field(description="how the policy loss is averaged")
    policy: Positive = Field(description="active tokens for token, responses for response")
    auxiliary_tokens: Positive = Field(description="model tokens: of token-averaged router losses")
    auxiliary_documents: Positive = Field(description="documents: of response-averaged ones")


class Objective(Part):
    """The normalised policy objective, without auxiliary terms."""

    local: float = Field(description="this rank's; the mean over ranks is global_")
    global_: float = Field(alias="global", description="of the step over all ranks")


class AuxiliaryTerm(Part):
    """A router loss of the step, coefficient included; dense models have none."""

    name: Annotated[str, Field(min_length=1)] = Field(description="load_balancing or z_loss")
    reduction: Literal["token", "response"] = Field(description="how documents are averaged")
    denominator: Positive = Field(description="model tokens or documents over all ranks")
    coefficient: Weight = Field(description="weight already multiplied into the terms")
    local: float = Field(description="this rank's weighted term")
    global_: float = Field(alias="global", description="mean of the local ones over ranks")


Ratio = Annotated[float, Field(ge=1.0 - 1e-9)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class RouterLoad(Part):
    """What the routers of all layers did in the step, over all ranks; one value a layer in lists.

    Loads count the experts that ran, whatever the balancing loss counts. `disagreement` is a
    measurement of its own: what ran is what was recorded, always.
    """

    grouping: Literal["pack", "sequence"] = Field(description="tokens that share a histogram")
    count_source: Literal["executed", "router_selected"] = Field(
        description="choices that the balancing loss counts"
    )
    replayed: bool = Field(description="whether recorded expert ids ran")
    experts: Positive = Field(description="routed experts of a layer")
    choices: Positive = Field(description="model tokens times experts a token")
    imbalance: list[Ratio] = Field(description="load of the busiest expert over the mean")
    idle: list[Count] = Field(description="experts that no token chose")
    recorded: Positive | None = Field(None, description="tokens with recorded ids; absent for none")
    disagreement: list[Share] | None = Field(
        None, description="share of them whose expert set live routing would have changed"
    )

    @model_serializer(mode="wrap")
    def _drop_missing(self, handler: Any) -> dict:
        return {key: value for key, value in handler(self).items() if value is not None}


class Versions(Part):
    """Policy versions, counted in completed optimizer steps of the run; the first policy is 0."""

    consumed: Count = Field(description="oldest version that sampled a token of this step")
    published: Count = Field(description="newest version in the engine when the step ran")
    trained: Count = Field(description="version of the weights that the step started from")
    allowed_lag: Count | None = Field(
        None, description="largest trained minus consumed; null: no limit is recorded"
    )


class LearningRate(Part):
    """Learning rate of the first parameter group."""

    used: Weight = Field(description="of this step")
    next: Weight = Field(description="of the step after it")


class Segment(Part):
    """Probability errors of some active tokens, over all ranks.

    Without tokens, mean, max and upper are absent. A null in `upper` is no missing value: that
    quantile lies in the overflow bin, above 1.0.
    """

    tokens: Count = Field(description="observations")
    counts: Annotated[list[Count], Field(min_length=BINS, max_length=BINS)] = Field(
        description="observations by bin; the last is the overflow"
    )
    mean: Weight | None = Field(None, description="nats")
    max: Weight | None = Field(None, description="exact maximum, nats")
    upper: Upper | None = Field(None, description="upper bounds of quantiles, nats")

    @model_serializer(mode="wrap")
    def _drop_missing(self, handler: Any) -> dict:
        whole = handler(self)
        return {
            key: value
            for key, value in whole.items()
            if value is not None or key not in ("mean", "max", "upper")
        }


class Upper(Part):
    """Upper bounds of quantiles; null is the overflow bin, above 1.0."""

    p50: Weight | None
    p95: Weight | None
    p99: Weight | None


class LengthSegment(Segment):
    """The same for the responses of one length bucket."""

    responses: Count = Field(description="responses of this length over all ranks")


class Thirds(Part):
    """By response position i of R: floor(3 i / R)."""

    first: Segment
    middle: Segment
    last: Segment


class Lengths(Part):
    """By generated tokens of the response."""

    to_8: LengthSegment = Field(alias="1-8")
    to_32: LengthSegment = Field(alias="9-32")
    to_128: LengthSegment = Field(alias="33-128")
    to_512: LengthSegment = Field(alias="129-512")
    to_2048: LengthSegment = Field(alias="513-2048")
    to_8192: LengthSegment = Field(alias="2049-8192")
    above: LengthSegment = Field(alias="8193+")


class ProbabilityError(Part):
    """|trainer-policy anchor - engine| of log-probabilities of active tokens, nats, all ranks."""

    bounds: list[float] = Field(description="upper bounds of the bins below the overflow")
    all: Segment
    thirds: Thirds
    lengths: Lengths


class UpdateSample(Part):
    """How a parameter's sampled values moved in this step."""

    values: Annotated[int, Field(ge=1, le=256)] = Field(description="sampled values of this rank")
    changed: Count = Field(description="of them, values that differ after the step")
    rms: Weight = Field(description="root mean square of the change")
    max: Weight = Field(description="largest absolute change")


class Diagnostics(Part):
    """Local probes of every `core.diagnostic_interval`-th step. No value here is global."""

    scope: Literal["local, not global"] = Field(description="says so in every record")
    interval: Positive = Field(description="core.diagnostic_interval")
    gradient_norm: Weight = Field(description="of this rank's gradients before optimizer intake")
    gradient_norms: dict[str, Weight] = Field(description="the same by parameter")
    updates: dict[str, UpdateSample] = Field(description="sampled updates by parameter")
    not_covered: list[str] = Field(description="what these probes cannot see")


class KeptSizes(Part):
    """Tokens that the sampler kept, by response token of the step in the loss, over all ranks."""

    tokens: Positive = Field(description="response tokens in the loss, each with a kept set")
    mean: Annotated[float, Field(ge=1.0)] = Field(description="mean size of a set")
    max: Positive = Field(description="size of the largest set")


class TrainingRecord(Part):
    """One optimizer step as one rank saw it."""

    schema_version: Literal[2] = Field(SCHEMA, alias="schema", description="of this record")
    rank: Count = Field(description="this rank")
    world_size: Positive = Field(description="ranks that averaged their gradients")
    collection: Count = Field(description="rollout of the run, from 0")
    optimizer_steps: Positive = Field(description="optimizer steps of that collection")
    step_in_collection: Count = Field(description="which of them this was, from 0")
    step: Positive = Field(description="completed optimizer steps of the run, this one included")
    seconds: Weight = Field(description="wall time of the step on this rank")
    counts: Counts
    denominators: Denominators
    policy: Objective
    auxiliary: list[AuxiliaryTerm] = Field(description="weighted router losses; [] for dense")
    versions: Versions
    lr: LearningRate
    probability_error: ProbabilityError
    router: RouterLoad | None = Field(None, description="absent for a dense model")
    diagnostics: Diagnostics | None = Field(None, description="absent when not due")
    kept_sets: KeptSizes | None = Field(None, description="absent without sampling replay")
    standins: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="how many functions of Core were replaced; absent for none"
    )

    @model_serializer(mode="wrap")
    def _drop_missing(self, handler: Any) -> dict:
        whole = handler(self)
        for key in ("router", "diagnostics", "kept_sets", "standins"):
            if whole.get(key) is None:
                whole.pop(key, None)
        return whole

    def plain(self) -> dict:
        """The record as JSON types, with its digest."""
        document = self.model_dump(mode="json", by_alias=True)
        return {**document, "digest": digest(document)}

    def line(self) -> str:
        """The record as one line of JSON, without the newline."""
        return json.dumps(self.plain(), separators=(",", ":"), allow_nan=False)


Segment.model_rebuild()


def digest(document: dict) -> str:
    """SHA-256, 16 hex digits, of a record without its digest, whatever order and spacing it has.

    Numbers that are whole count as integers, so that a tool that rewrites 1.0 as 1 changes nothing.
    """
    bare = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(_canonical(bare), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
