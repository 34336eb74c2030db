"""The settings of one run: Pydantic models, strict, unknown keys forbidden, all with defaults.

Section and field names are those of the sequel's page where it names them (`[core]`, `[trainer]`,
`[miles]`) and those of Miles' flags elsewhere. A value that is wrong by itself is an error here; a
combination that this trainer does not do is a row of `support`. Loads neither torch nor OLMo-core.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A table of the run file: no unknown key, no conversion, no inf or nan, not changeable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """`[model]`: where the policy comes from and how the trainer holds it."""

    path: Name | None = Field(
        None, description="HF folder with config, tokenizer, weights; unset: tiny"
    )
    backend: Literal["auto", "dense", "moe"] = Field(
        "auto", description="train module; auto reads the model's own config"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of the trainer's forward; master weights are float32"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the trainer runs")
    threads: Count = Field(
        0, description="CPU threads of torch; 0 leaves them as they are, tiny models want 1"
    )
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="dropout of the trainer's blocks"
    )
    family: Literal["llama", "qwen3", "olmo2", "qwen3_moe"] = Field(
        "llama", description="tiny model: architecture"
    )
    d_model: Positive = Field(64, description="tiny model: width")
    n_layers: Positive = Field(2, description="tiny model: layers")
    n_heads: Positive = Field(4, description="tiny model: attention heads")
    n_kv_heads: Positive = Field(2, description="tiny model: key and value heads")
    ffn: Positive = Field(128, description="tiny model: width of the feed-forward layer")
    n_experts: Positive = Field(8, description="tiny qwen3_moe: experts of a layer")
    experts_per_token: Positive = Field(2, description="tiny qwen3_moe: experts of a token")
    expert_ffn: Positive = Field(32, description="tiny qwen3_moe: width of an expert")
    warm_steps: Count = Field(
        0, description="tiny model: supervised steps before the run, so that rewards are not all 0"
    )
    seed: Count | None = Field(
        None, description="tiny model: seed of its weights; unset: the run's seed"
    )


class TaskConfig(Section):
    """`[task]`: prompts, answers and the reward."""

    name: Name = Field("arithmetic", description="module of capture.core.tasks")
    seed: Count = Field(0, description="seed of the prompts and of the held-out split")
    train_prompts: Positive = Field(512, description="different training prompts")
    eval_prompts: Positive = Field(64, description="held-out prompts")
    max_operand: Positive = Field(29, description="largest number of a prompt's sums")
    two_steps: Fraction = Field(0.2, description="share of word problems with two steps")
    shots: Count = Field(2, description="worked examples before a word problem")
    demonstrations_right: Fraction = Field(
        0.5, description="share of right answers among the demonstrations that warm a tiny model"
    )


class RolloutConfig(Section):
    """`[rollout]`: what one collection is. Names are Miles' flags with underscores."""

    num_rollout: Positive = Field(10, description="collections of the run: its horizon")
    rollout_batch_size: Positive = Field(8, description="prompts of a collection")
    n_samples_per_prompt: Positive = Field(8, description="samples of a prompt: the group")
    max_new_tokens: Positive = Field(16, description="longest response, in tokens")
    temperature: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="sampling temperature; the trainer divides its logits by it too"
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1.0, description="nucleus; 1 keeps all")
    top_k: int = Field(-1, ge=-1, description="kept tokens; -1 keeps all")
    use_sampling_replay: bool = Field(
        False,
        description="score over the tokens that top_p and top_k kept; top_k bounds the memory",
    )
    allow_sampler_mismatch: bool = Field(
        False, description="top_p or top_k without replay: the trainer scores another distribution"
    )
    mode: Literal["sync", "async"] = Field(
        "sync", description="async: a producer collects while the trainer trains"
    )
    max_lag: Count = Field(
        0, description="async: oldest behaviour version allowed, in optimizer steps"
    )
    shuffle: bool = Field(True, description="new order of the prompts in every epoch")


class EngineConfig(Section):
    """`[engine]`: what generates the responses."""

    kind: Literal["transformers", "sglang", "core"] = Field(
        "transformers", description="in this process, a server, or exactly the trainer's forward"
    )
    url: Name | None = Field(None, description="address of the SGLang server")
    placement: Literal["resident", "colocated"] = Field(
        "resident", description="resident: keeps its own weights; colocated: takes turns"
    )
    refresh: Literal["mixed", "barrier", "drain"] = Field(
        "mixed", description="what running responses do at a publication"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="dtype of the engine")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where an in-process engine runs")
    batch_size: Positive = Field(64, description="responses at once; core takes a pack of them")
    decode: Literal["cache", "graph"] = Field(
        "cache", description="transformers: graph is a static cache and, on cuda, a CUDA graph"
    )
    enable_fp32_lm_head: bool | None = Field(
        None, description="FP32 head of the serving side; unset: as the trainer's"
    )
    bucket_bytes: Positive = Field(
        536_870_912, description="largest flattened bucket of a publication"
    )
    exchange: Name | None = Field(
        None, description="folder that the SGLang server reads new weights from; unset: temporary"
    )
    timeout: Annotated[float, Field(gt=0.0)] = Field(
        300.0, description="seconds a request may take"
    )


class OptimizerConfig(Section):
    """`[optimizer]`: the arguments of Core's optimizer."""

    kind: Literal["adamw", "skip_step_adamw"] = Field("adamw", description="Core optimizer")
    lr: Annotated[float, Field(gt=0.0)] = Field(1e-6, description="peak learning rate")
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.9, description="first moment")
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.98, description="second moment")
    eps: Annotated[float, Field(gt=0.0)] = Field(1e-8, description="added to the denominator")
    weight_decay: Weight = Field(0.0, description="decoupled weight decay")
    max_grad_norm: Weight = Field(1.0, description="clipping; 0 leaves gradients as they are")


class ScheduleConfig(Section):
    """`[schedule]`: the learning rate, in optimizer steps. Core's scheduler computes it."""

    kind: Literal["constant", "linear", "cosine"] = Field("constant", description="shape")
    warmup_steps: Count = Field(0, description="linear warm-up from 0")
    final_fraction: Fraction = Field(0.1, description="last rate as a part of the peak")


class ParallelConfig(Section):
    """`[parallel]`: ranks of the trainer. `world_size` must be what torchrun started."""

    world_size: Positive = Field(1, description="trainer processes")
    data_parallel: Literal["ddp", "fsdp", "hsdp"] = Field("ddp", description="from two ranks up")
    tp: Positive = Field(1, description="tensor parallel size")
    pp: Positive = Field(1, description="pipeline parallel size")
    cp: Positive = Field(1, description="context parallel size")
    ep: Positive = Field(1, description="expert parallel size")


class BatchConfig(Section):
    """`[batch]`: how a collection becomes optimizer steps and forwards."""

    global_batch_size: Positive = Field(64, description="samples of an optimizer step, all ranks")
    microbatch_size: Positive = Field(1, description="instances of a Core forward")
    pack_tokens: Count = Field(
        0, description="tokens of a document-isolated pack; 0: one sample a forward"
    )
    document_tokens: Count = Field(
        0, description="every document is padded to so many, for one shape of all forwards; 0: none"
    )


class ObjectiveConfig(Section):
    """`[objective]`: the policy loss and the advantages."""

    eps_clip: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(0.2, description="lower PPO clip")
    eps_clip_high: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="upper PPO clip; unset: as eps_clip"
    )
    dual_clip: Annotated[float, Field(gt=1.0)] | None = Field(
        None, description="bound of the loss where the advantage is negative; unset: none"
    )
    kl_coef: Weight = Field(0.0, description="KL to the first policy; 0 keeps no reference")
    kl_type: Literal["k1", "k2", "k3", "low_var_kl"] = Field("k3", description="KL estimator")
    entropy_coef: Weight = Field(0.0, description="entropy bonus")
    tis: bool = Field(False, description="truncated importance sampling, behaviour to trainer")
    tis_clip: Annotated[float, Field(gt=0.0)] = Field(2.0, description="upper bound of its weight")
    tis_clip_low: Weight = Field(0.0, description="lower bound of its weight")
    reduction: Literal["token", "response"] = Field(
        "token", description="token mean, or mean of response means, over the optimizer step"
    )
    normalize_std: bool = Field(True, description="advantages over the group's deviation too")


class ScoringConfig(Section):
    """`[scoring]`: the trainer-policy anchor, and the guard of its distance to the engine."""

    force: bool = Field(False, description="always run the standalone scoring pass")
    compare_interval: Positive = Field(
        10, description="optimizer steps between comparisons; the first update is always compared"
    )
    tolerance: Annotated[float, Field(gt=0.0)] = Field(
        1e-4, description="largest mean |log-probability difference| that permits the skip"
    )
    max_mean_drift: Weight = Field(
        0.5, description="mean |log-probability| from the engine to the anchor; 0 is off"
    )


class EvaluationConfig(Section):
    """`[evaluation]`: held-out prompts."""

    interval: Count = Field(0, description="collections between evaluations; 0 is none")
    samples: Positive = Field(1, description="responses a prompt")
    temperature: Weight = Field(0.0, description="0 takes the most probable token")
    at_start: bool = Field(False, description="evaluate the first weights too")


class CoreConfig(Section):
    """`[core]`: what the page puts there."""

    compile_model: bool = Field(False, description="torch.compile of the trainer's model")
    recompute: bool = Field(False, description="recompute activations in the backward")
    diagnostic_interval: Count = Field(
        0, description="optimizer steps between local gradient norms and update samples; 0 is none"
    )
    fp32_lm_head: bool = Field(False, description="FP32-output vocabulary head")
    router_aux_loss_grouping: Literal["pack", "sequence"] = Field(
        "pack", description="tokens that share a balancing histogram"
    )
    router_aux_loss_reduction: Literal["token", "response"] = Field(
        "token", description="weight of a document in the balancing loss"
    )
    router_z_loss_reduction: Literal["token", "response"] = Field(
        "token", description="weight of a document in the z loss"
    )
    router_aux_count_source: Literal["executed", "router_selected"] = Field(
        "executed", description="expert choices that the balancing histogram counts"
    )
    router_aux_loss_weight: Weight = Field(0.01, description="balancing coefficient; 0.0 disables")
    router_z_loss_weight: Weight = Field(1e-5, description="z-loss coefficient; 0.0 disables")


class TrainerConfig(Section):
    """`[trainer]`: the structured form of one option of `[core]`."""

    fp32_lm_head: bool = Field(False, description="the same as core.fp32_lm_head")


class MilesConfig(Section):
    """`[miles]`: flags of Miles that the page names, and where files go."""

    save: Name | None = Field(
        None, description="folder of contract records, checkpoints and run log; unset: none"
    )
    save_interval: Count = Field(0, description="collections between checkpoints; 0: at the end")
    keep_checkpoints: Count = Field(2, description="newest checkpoints kept; 0 keeps all")
    load: Name | None = Field(None, description="folder of a run to resume")
    save_hf: Name | None = Field(None, description="folder of the final HF export")
    debug_exit_after_rollout: Positive | None = Field(
        None, description="stop after this many collections of the run, resumable"
    )
    check_weight_update_equal: bool = Field(
        False, description="audit the serving weights at the first and at periodic publications"
    )
    check_weight_update_tolerance: Weight = Field(
        0.0, description="quantization tolerance of that audit; 0 compares exactly"
    )
    use_rollout_routing_replay: bool = Field(False, description="replay recorded expert ids")
    use_miles_router: bool = Field(False, description="the router that records them")


class RunConfig(Section):
    """One run file."""

    name: Name = Field("run", description="name of the run")
    seed: Count = Field(1234, description="seed of sampling, of the order of prompts and of ranks")
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    parallel: ParallelConfig = ParallelConfig()
    batch: BatchConfig = BatchConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    scoring: ScoringConfig = ScoringConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    core: CoreConfig = CoreConfig()
    trainer: TrainerConfig = TrainerConfig()
    miles: MilesConfig = MilesConfig()

    @property
    def samples_per_collection(self) -> int:
        """Samples of a collection, over all ranks."""
        return self.rollout.rollout_batch_size * self.rollout.n_samples_per_prompt

    @property
    def steps_per_collection(self) -> int:
        """Optimizer steps of a collection; the support matrix makes sure that it is whole."""
        return self.samples_per_collection // self.batch.global_batch_size

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps_per_collection * self.rollout.num_rollout

    @property
    def fp32_lm_head(self) -> bool:
        """Whether either form asks for the FP32-output head."""
        return self.core.fp32_lm_head or self.trainer.fp32_lm_head

    @property
    def replays_routes(self) -> bool:
        """Whether recorded expert ids are replayed; the support matrix wants both switches."""
        return self.miles.use_rollout_routing_replay and self.miles.use_miles_router

    @property
    def truncates(self) -> bool:
        """Whether top_p or top_k keeps tokens from being sampled."""
        return self.rollout.top_p < 1.0 or self.rollout.top_k > 0

    @property
    def pack_tokens(self) -> int | None:
        """Tokens of a pack, or None without packing."""
        return self.batch.pack_tokens or None

    @property
    def anchor_may_skip(self) -> bool:
        """Whether the training forward can be the anchor: the page's three conditions hold."""
        return (
            self.steps_per_collection == 1
            and self.objective.kl_coef == 0.0
            and self.model.dropout == 0.0
            and not self.scoring.force
        )
