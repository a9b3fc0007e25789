"""What the REST API says, as typed models.

Members that a newer server adds are kept (`model_extra`), and words that it adds are taken as they are. Times with
`_ms` are milliseconds, those with `unix_ms` since the Unix epoch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Stage = Literal["boot", "setup", "agent", "verify", "collect"] | str
"""The stages of a rollout, in order."""

State = Literal["queued", "running", "finished", "interrupted"] | str
"""How far a rollout is. Interrupted: its server died over it, and nothing came of it."""

Ended = Literal["completed", "budget", "timeout", "agent_error", "setup_error", "cancelled"] | str
"""How a rollout ended."""

FaultOwner = Literal["task", "agent", "sandbox", "upstream", "server"] | str
"""Whose failure it was."""

CaptureLevel = Literal["text", "logprobs", "tokens"] | str
"""What the capture of a call is worth: text, log-probabilities too, or ids of prompt and completion too."""


class Model(BaseModel):
    """What all models have in common."""

    model_config = ConfigDict(extra="allow")


class Submitted(Model):
    """A rollout that was taken."""

    id: str
    group: str | None = None
    """The rollouts of the same spec."""
    sample: int = 0
    """Which of them it is, from 0."""
    task_id: str | None = None


class Totals(Model):
    """What the calls of a rollout add up to."""

    calls: int = 0
    trainable_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    trainable_tokens: int = 0
    prefix_breaks: int = 0
    """Prompts that did not go on from an earlier call exactly."""
    level: CaptureLevel | None = None
    """The lowest level among the agent's own complete calls."""


class Fault(Model):
    """Why a rollout failed."""

    code: str
    """A stable word for branching on, such as `setup_command_failed`."""
    owner: FaultOwner
    stage: Stage | None = None
    retryable: bool = False
    """Whether the same rollout may succeed when tried again."""
    message: str
    causes: list[str] = Field(default_factory=list)
    """Outermost first."""
    hint: str | None = None

    def __str__(self) -> str:
        return ": ".join([self.message, *self.causes]) + f" ({self.code})"


class CommandResult(Model):
    """A shell command, and what came of it."""

    command: str = ""
    exit_code: int
    """124 after a timeout, 128 + n after signal n, -1 if it could not be run."""
    signal: int | None = None
    timed_out: bool = False
    stdout: str = ""
    """The end of it."""
    stderr: str = ""
    """The end of it."""
    output_bytes: int = 0
    duration_ms: int = 0


class Reward(Model):
    """The verdict on a rollout, with what it rests on."""

    value: float | None = None
    """None where there is no verdict, which is not the same as 0."""
    overridden: bool = False
    source: Literal["verify", "override", "caller"] | str = "verify"
    commands: list[CommandResult] = Field(default_factory=list)
    separation: Literal["fresh", "namespace", "uid", "none"] | str = "none"
    """What kept the agent's leavings away from verify."""
    detail: dict[str, Any] | None = None
    """What the caller of a held rollout said about it."""


class StageTime(Model):
    """How long a stage took."""

    stage: Stage
    duration_ms: int
    warm: bool = False
    """Of boot: whether the sandbox was ready before it was asked for."""
    restored: bool = False
    """Of setup, and of verify in a fresh sandbox: whether an earlier setup's files were taken instead."""


class AgentOutcome(Model):
    """What the agent's program did."""

    exit_code: int
    signal: int | None = None
    spoke: bool = False
    """Whether it said anything as an assistant."""
    session: str | None = None
    """The agent's own id of its session."""
    log_tail: str = ""
    duration_ms: int = 0


class Outcome(Model):
    """What came of a rollout."""

    id: str
    ended: Ended
    fault: Fault | None = None
    reward: Reward | None = None
    sandbox: str | None = None
    stages: list[StageTime] = Field(default_factory=list)
    setup: list[CommandResult] = Field(default_factory=list)
    agent: AgentOutcome | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """Collected from the working directory: path relative to it, to text."""
    files_extra: list[str] = Field(default_factory=list)
    """Paths that were there but not collected."""
    totals: Totals = Field(default_factory=Totals)
    warnings: list[str] = Field(default_factory=list)
    wall_ms: int = 0
    finished_unix_ms: int = 0


class Start(Model):
    """What is known of a rollout when it starts."""

    id: str
    task: dict[str, Any] = Field(default_factory=dict)
    """The task, with its defaults filled in."""
    sample: int = 0
    group: str | None = None
    endpoint: str = ""
    base_url: str = ""
    model: str = ""
    backend: str = ""
    agent_version: str = ""
    mode: str = ""
    placement: str = ""
    capture: str = ""
    started_unix_ms: int = 0


class RolloutSummary(Model):
    """A rollout as lists show it."""

    id: str
    state: State
    group: str | None = None
    sample: int = 0
    priority: int = 0
    task_id: str | None = None
    title: str = ""
    """The first line of the instruction, cut."""
    agent: str = ""
    agent_version: str = ""
    backend: str = ""
    endpoint: str = ""
    model: str = ""
    created_unix_ms: int | None = None
    started_unix_ms: int | None = None
    finished_unix_ms: int | None = None
    wall_ms: int | None = None
    ended: Ended | None = None
    reward: float | None = None
    fault_code: str | None = None
    fault_owner: FaultOwner | None = None
    totals: Totals = Field(default_factory=Totals)
    stage: Stage | None = None
    """The stage that a running one is in."""
    cancelling: bool = False
    held_until_unix_ms: int | None = None
    """Its sandbox is held until then."""
    queue_position: int | None = None
    """How many wait before it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in ("finished", "interrupted")

    @property
    def is_held(self) -> bool:
        """Whether its sandbox is kept for the caller."""
        return self.held_until_unix_ms is not None and not self.is_over


class Rollout(RolloutSummary):
    """A rollout whole, but for its calls. `reward` is None where there is no verdict."""

    start: Start | None = None
    """As it started, with the task; None while it waits."""
    outcome: Outcome | None = None
    """What came of it; None while it waits or runs, and where it was interrupted."""

    @property
    def fault(self) -> Fault | None:
        """Why it failed, where it did."""
        return self.outcome.fault if self.outcome else None

    @property
    def files(self) -> dict[str, str]:
        """What was collected from the working directory."""
        return self.outcome.files if self.outcome else {}


class Page(Model):
    """A page of a list of rollouts, the latest first."""

    rollouts: list[RolloutSummary]
    next_cursor: str | None = None
    """`cursor` of the next page; None on the last, and where they are not sorted by time."""
    next_skip: int | None = None
    """`skip` of the next page, where they are not sorted by time; None on the last."""


class Group(Model):
    """Rollouts that were asked for together, summed up."""

    id: str
    task_id: str | None = None
    title: str = ""
    agent: str = ""
    backend: str = ""
    endpoint: str = ""
    model: str = ""
    created_unix_ms: int | None = None
    rollouts: int = 0
    queued: int = 0
    running: int = 0
    finished: int = 0
    interrupted: int = 0
    failed: int = 0
    rewarded: int = 0
    reward_mean: float | None = None
    reward_best: float | None = None
    reward_worst: float | None = None
    reward_deviation: float | None = None
    wall_mean_ms: float | None = None
    calls: int = 0
    completion_tokens: int = 0


class Groups(Model):
    """A page of groups, the latest first."""

    groups: list[Group]
    next_cursor: str | None = None
    """`cursor` of the next page; None on the last."""


class CallSummary(Model):
    """The numbers of a call."""

    id: str
    index: int
    """Order of arrival in its rollout, from 0."""
    end: str
    purpose: str
    level: CaptureLevel
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: list[str] = Field(default_factory=list)
    duration_ms: int = 0
    prefix_break: bool = False


class Call(CallSummary):
    """A call, without what was said."""

    trainable: bool = False
    continues: int | None = None
    """Index of the call whose conversation it goes on from."""
    meta: dict[str, Any] = Field(default_factory=dict)


class Turn(Model):
    """A call as trainers read it: ids, log-probabilities, loss mask, request and reply."""

    turn: int = 0
    node_id: str
    parent_node_id: str | None = None
    role: Literal["agent", "auxiliary"] | str = "agent"
    """Auxiliary: titles, summaries, sub-agents, foreign calls. Never trained."""
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None
    """None where they were not captured."""
    completion_token_ids: list[int] = Field(default_factory=list)
    completion_tokens: list[str] = Field(default_factory=list)
    per_token_logps: list[float] = Field(default_factory=list)
    loss_mask: list[int] | None = None
    """0 or 1 for each token of prompt and completion."""
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    flags: list[str] = Field(default_factory=list)
    """What makes it less than a clean, trainable turn."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    latency_s: float = 0.0
    timestamp: float = 0.0
    upstream_status: int | None = None
    upstream_error: dict[str, Any] | None = None


class Trajectory(Model):
    """The turns of a rollout, in the order of recording."""

    rollout: str
    schema_version: int = 1
    turns: list[Turn]


class Logs(Model):
    """The ends of what the programs of a rollout wrote."""

    agent: str | None = None
    setup: list[CommandResult] | None = None
    verify: list[CommandResult] | None = None
    warnings: list[str] | None = None


# --- events ---


class _Event(Model):
    """What events have in common."""

    type: str


class Queued(_Event):
    """The rollout was taken; the first event of each."""

    type: Literal["queued"]
    position: int = 0


class StageStarted(_Event):
    """A stage began."""

    type: Literal["stage_started"]
    stage: Stage


class StageEnded(_Event):
    """A stage ended."""

    type: Literal["stage_ended"]
    stage: Stage
    duration_ms: int


class CommandStarted(_Event):
    """A setup or verify command began."""

    type: Literal["command_started"]
    stage: Stage
    index: int
    command: str


class CommandOutput(_Event):
    """A command wrote something. May be left out under load."""

    type: Literal["command_output"]
    stage: Stage
    index: int
    stream: Literal["stdout", "stderr"] | str
    text: str


class CommandEnded(_Event):
    """A command ended."""

    type: Literal["command_ended"]
    stage: Stage
    index: int
    result: CommandResult


class AgentSaid(_Event):
    """The agent said or did something: `event["kind"]` is session, text, tool, error or step_ended."""

    type: Literal["agent"]
    event: dict[str, Any]


class CallProgress(_Event):
    """Tokens of a call that goes on were sampled; `text` is what came since this was told last."""

    type: Literal["call_progress"]
    call: str
    tokens: int
    text: str = ""


class CallStarted(_Event):
    """A call was sent to the endpoint."""

    type: Literal["call_started"]
    call: str


class CallEnded(_Event):
    """A call ended and is recorded."""

    type: Literal["call_ended"]
    call: CallSummary


class RewardGiven(_Event):
    """There is a verdict; told again where the caller of a held rollout gives another."""

    type: Literal["reward"]
    value: float | None = None


class Held(_Event):
    """The sandbox is kept for the caller; told again whenever the deadline moves."""

    type: Literal["held"]
    until_unix_ms: int


class Released(_Event):
    """The sandbox is kept no longer."""

    type: Literal["released"]
    by: Literal["caller", "deadline", "cancel"] | str


class Finished(_Event):
    """The rollout is over; the last event of each."""

    type: Literal["finished"]
    ended: Ended
    fault: Fault | None = None


class OtherEvent(_Event):
    """An event that this version does not know."""


_EVENTS: tuple[type[_Event], ...] = (
    Queued,
    StageStarted,
    StageEnded,
    CommandStarted,
    CommandOutput,
    CommandEnded,
    AgentSaid,
    CallStarted,
    CallProgress,
    CallEnded,
    RewardGiven,
    Held,
    Released,
    Finished,
)
_KNOWN = frozenset(kind.model_fields["type"].annotation.__args__[0] for kind in _EVENTS)  # type: ignore[union-attr]


def _tag(event: object) -> str:
    kind = event.get("type") if isinstance(event, dict) else getattr(event, "type", None)
    return kind if isinstance(kind, str) and kind in _KNOWN else "other"


Event = Annotated[
    Union[
        Annotated[Queued, Tag("queued")],
        Annotated[StageStarted, Tag("stage_started")],
        Annotated[StageEnded, Tag("stage_ended")],
        Annotated[CommandStarted, Tag("command_started")],
        Annotated[CommandOutput, Tag("command_output")],
        Annotated[CommandEnded, Tag("command_ended")],
        Annotated[AgentSaid, Tag("agent")],
        Annotated[CallStarted, Tag("call_started")],
        Annotated[CallProgress, Tag("call_progress")],
        Annotated[CallEnded, Tag("call_ended")],
        Annotated[RewardGiven, Tag("reward")],
        Annotated[Held, Tag("held")],
        Annotated[Released, Tag("released")],
        Annotated[Finished, Tag("finished")],
        Annotated[OtherEvent, Tag("other")],
    ],
    Discriminator(_tag),
]
"""What happens in a rollout."""


class RolloutEvent(Model):
    """Something that happened in a rollout, with its place in the order of things."""

    rollout: str
    sequence: int
    """Position among the events of its rollout, from 0, without gaps."""
    unix_ms: int
    event: Event


# --- catalogue ---


class Endpoint(Model):
    """A model endpoint that has a name."""

    name: str
    usable: bool = True
    base_url: str | None = None
    model: str | None = None
    has_key: bool = False
    """Whether the server has a key for it."""
    capture: str | None = None
    """How it is asked for what training needs, as configured."""
    problem: str | None = None
    """Why it cannot be used."""
    hint: str | None = None


class EndpointView(Model):
    """A model endpoint, as it is used now."""

    name: str
    base_url: str
    """Its first URL."""
    replicas: list[str] = Field(default_factory=list)
    """URLs of further servers with the same model."""
    model: str | None = None
    paused: bool = False
    """New calls wait."""
    in_flight: int = 0
    """Calls that it works on."""
    waiting: int = 0
    """Calls that wait to be sent."""
    max_calls_at_once: int | None = None
    max_calls_per_minute: int | None = None
    policy_version: str | None = None
    """Which weights it serves, as the trainer said last."""
    probe: dict[str, Any] | None = None
    """What it returns, where that was found out: see `Client.probe_endpoint`."""


class Agent(Model):
    """An agent, and whether it is installed."""

    name: str
    version: str = ""
    installed: bool = False
    problem: str | None = None
    dialect: str | None = None
    """What it speaks to its model; None where the task says."""
    honours: list[str] = []
    """Keys of a task that it does as they say, such as `turns`; others are refused."""


class Backend(Model):
    """A sandbox backend."""

    name: str
    summary: str = ""
    """What it is, in a line."""


class Preset(Model):
    """A ready-made task."""

    name: str
    title: str = ""
    task: dict[str, Any] = Field(default_factory=dict)


class TaskFile(Model):
    """A task file that the server offers."""

    name: str
    path: str = ""
    """Where it is on the server's machine."""


class Queue(Model):
    """What waits and runs, and the limits."""

    waiting: int = 0
    running: int = 0
    held: int = 0
    limits: dict[str, Any] = Field(default_factory=dict)


class Version(Model):
    """What a server is."""

    name: str
    version: str
    api: str = ""
    """The version of the REST API, as its paths have it."""
    schemas: dict[str, int] = Field(default_factory=dict)
    """Versions of the forms that it stores and exports, such as `trajectory` and `training`."""
