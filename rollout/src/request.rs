use dressage_sandbox::Backend;
use dressage_tap::Upstream;
use dressage_wire::ids::{GroupId, RolloutId};
use dressage_wire::task::{CaptureMode, Mode, Placement, Task};
use std::sync::Arc;
use std::time::Duration;

/// Everything that one rollout needs.
#[derive(Clone)]
pub struct RolloutRequest {
    /// Its id, chosen by the caller.
    pub id: RolloutId,
    /// What is to be done.
    pub task: Arc<Task>,
    /// Which of the n rollouts of the task it is, from 0.
    pub sample: u32,
    /// The rollouts that it is to start together with; those of one submission, that is.
    pub group: Option<GroupId>,
    /// Higher starts first; 0 where nobody says.
    pub priority: i32,
    /// The model endpoint; it names itself.
    pub upstream: Arc<Upstream>,
    /// Where it runs.
    pub backend: Arc<dyn Backend>,
    /// Image or template, for backends that have such.
    pub image: Option<String>,
    /// Where model calls go.
    pub mode: Mode,
    /// Where the tap answers them.
    pub placement: Placement,
    /// How the tap asks the endpoint.
    pub capture: CaptureMode,
    /// Alternatives asked for at each position.
    pub top_logprobs: u32,
    /// Whether the model is told not to think; the endpoint's own setting if unset.
    pub disable_thinking: Option<bool>,
    /// Whether the sandbox is kept after the agent for the caller, and for how long without a call of the caller's.
    pub hold: Option<Duration>,
}
