use super::finding::{Damage, Findings, Place};
use super::rows::check_logprobs;
use crate::call::Flag;
use crate::export::atif::{Step, Trajectory, call_of};
use serde_json::Value;
use std::collections::HashSet;

/// Checks a document of the shape `atif` by Harbor's own rules (the models of the package `harbor` 0.26), and by ours.
pub fn atif(document: &Trajectory, findings: &mut Findings) {
    findings.tally.rows += 1;
    let rollout = document.session_id.clone().unwrap_or_default();
    if findings.trained.0 != rollout {
        findings.trained = (rollout, HashSet::new());
    }
    trajectory(document, findings);
}

fn trajectory(document: &Trajectory, findings: &mut Findings) {
    let leaf = document
        .extra
        .as_ref()
        .and_then(|extra| extra.get("leaf")?.as_u64());
    let place = Place {
        rollout: document.session_id.clone(),
        sequence: leaf.and_then(|leaf| usize::try_from(leaf).ok()),
        ..Place::default()
    };
    findings.tally.sequences += 1;
    if document.steps.is_empty() {
        findings.add(Damage::Messages, place.clone(), "there are no steps");
    }
    for (position, known) in document.steps.iter().enumerate() {
        let mut place = place.clone().at(position);
        place.call = call_of(known);
        if known.step_id != position as u64 + 1 {
            let message = format!("step {} stands where {} belongs", known.step_id, position + 1);
            findings.add(Damage::Messages, place.clone(), message);
        }
        step(known, &place, findings);
    }
    let counted = document
        .final_metrics
        .as_ref()
        .and_then(|metrics| metrics.total_steps);
    if document.notes.is_none() && counted.is_some_and(|counted| counted != document.steps.len() as u64) {
        let message = format!(
            "there are {} steps, and {counted:?} are counted",
            document.steps.len()
        );
        findings.add(Damage::LengthsDiffer, place.clone(), message);
    }
    let mut embedded = HashSet::new();
    for sub_agent in document.subagent_trajectories.iter().flatten() {
        match &sub_agent.trajectory_id {
            None => findings.add(
                Damage::Messages,
                place.clone(),
                "an embedded trajectory has no id",
            ),
            Some(id) if !embedded.insert(id.as_str()) => {
                findings.add(
                    Damage::Duplicate,
                    place.clone(),
                    format!("`{id}` is embedded twice"),
                );
            }
            Some(_) => {}
        }
        trajectory(sub_agent, findings);
    }
    let results = document.steps.iter().filter_map(|step| step.observation.as_ref());
    let references = results
        .flat_map(|observation| &observation.results)
        .flat_map(|result| result.subagent_trajectory_ref.iter().flatten());
    for reference in references {
        let found = match &reference.trajectory_id {
            Some(id) => reference.trajectory_path.is_some() || embedded.contains(id.as_str()),
            None => reference.trajectory_path.is_some(),
        };
        if !found {
            let message = format!("there is no trajectory {:?}", reference.trajectory_id);
            findings.add(Damage::ContentMissing, place.clone(), message);
        }
    }
}

fn step(step: &Step, place: &Place, findings: &mut Findings) {
    let is_agent = step.source == "agent";
    if !is_agent && !matches!(step.source.as_str(), "system" | "user") {
        findings.add(
            Damage::Messages,
            place.clone(),
            format!("`{}` is nobody", step.source),
        );
    }
    let of_agents = step.model_name.is_some()
        || step.reasoning_effort.is_some()
        || step.reasoning_content.is_some()
        || step.tool_calls.is_some()
        || step.metrics.is_some();
    if !is_agent && of_agents {
        let message = format!("`{}` has what only an agent has", step.source);
        findings.add(Damage::Messages, place.clone(), message);
    }
    if is_agent
        && step.llm_call_count == Some(0)
        && (step.metrics.is_some() || step.reasoning_content.is_some())
    {
        findings.add(
            Damage::Messages,
            place.clone(),
            "no model was called, and one answered",
        );
    }
    if !matches!(step.message, Value::String(_) | Value::Array(_)) {
        findings.add(
            Damage::Messages,
            place.clone(),
            "a message is neither text nor parts",
        );
    }
    let calls: HashSet<&str> = step
        .tool_calls
        .iter()
        .flatten()
        .map(|call| call.tool_call_id.as_str())
        .collect();
    let results = step
        .observation
        .iter()
        .flat_map(|observation| &observation.results);
    for id in results.filter_map(|result| result.source_call_id.as_deref()) {
        if !calls.contains(id) {
            let message = format!("a result is of call `{id}`, which the step does not make");
            findings.add(Damage::Messages, place.clone(), message);
        }
    }
    tokens(step, place, findings);
}

fn tokens(step: &Step, place: &Place, findings: &mut Findings) {
    let Some(metrics) = &step.metrics else { return };
    let prompt = metrics.prompt_token_ids.as_ref().map_or(0, Vec::len);
    let sampled = metrics.completion_token_ids.as_ref().map_or(0, Vec::len);
    findings.tally.calls += 1;
    findings.tally.tokens += (prompt + sampled) as u64;
    if let (Some(ids), Some(logprobs)) = (&metrics.completion_token_ids, &metrics.logprobs)
        && ids.len() != logprobs.len()
    {
        let message = format!("{} sampled ids, {} log-probabilities", ids.len(), logprobs.len());
        findings.add(Damage::LengthsDiffer, place.clone(), message);
    }
    let more = |name: &str| step.extra.as_ref().and_then(|extra| extra.get(name));
    let trainable = more("trainable").and_then(Value::as_bool) == Some(true);
    let trained = trainable && step.is_copied_context != Some(true);
    if !trained {
        return;
    }
    if let Some(logprobs) = &metrics.logprobs {
        check_logprobs(
            logprobs,
            &Place {
                position: None,
                ..place.clone()
            },
            findings,
        );
    }
    findings.tally.trainable_calls += 1;
    findings.tally.trained_tokens += sampled as u64;
    if metrics.logprobs.is_none() || sampled == 0 || prompt == 0 {
        findings.add(
            Damage::LengthsDiffer,
            place.clone(),
            "it is trained, and lacks tokens",
        );
    }
    if metrics.completion_tokens != Some(sampled as u64) {
        let counted = metrics.completion_tokens;
        let message = format!("the endpoint counted {counted:?}, and {sampled} were captured");
        findings.add(Damage::UsageDiffers, place.clone(), message);
    }
    let flags = more("flags").and_then(|flags| serde_json::from_value::<Vec<Flag>>(flags.clone()).ok());
    if let Some(flag) = flags.iter().flatten().find(|flag| flag.blocks_training()) {
        let message = format!("it is trained in spite of: {}", flag.name());
        findings.add(Damage::FlagsInconsistent, place.clone(), message);
    }
    if let Some(call) = call_of(step)
        && !findings.trained.1.insert(call)
    {
        let message = format!("call {call} is trained in another step too");
        findings.add(Damage::TrainedTwice, place.clone(), message);
    }
}
