use super::*;

/// A conversation with a sub-agent that the second call started.
fn with_sub_agent() -> Vec<Sketch> {
    let mut calls = conversation();
    let sub_agent = call(4, &[user("look")])
        .tokens(&[8], &[80, 81])
        .reply("seen", None);
    calls.insert(
        2,
        sub_agent.with(|meta| {
            meta.index = 2;
            meta.purpose = Purpose::Subagent;
            meta.session = Some("child".into());
            meta.parent_session = Some("s".into());
        }),
    );
    calls[3].call.meta.index = 3;
    calls[4].call.meta.index = 4;
    calls
}

#[test]
fn documents_in_atif_hold_each_call_once_with_its_tokens_and_what_came_of_it() {
    let documents = exported(with_sub_agent(), Shape::Atif, Selection::default());
    assert_eq!(
        documents.len(),
        1,
        "the sub-agent is embedded, the title not selected"
    );
    let document = &documents[0];
    assert_eq!(document["schema_version"], "ATIF-v1.7");
    let steps = document["steps"].as_array().unwrap();
    let sources: Vec<&str> = steps
        .iter()
        .map(|step| step["source"].as_str().unwrap())
        .collect();
    assert_eq!(sources, ["user", "agent", "user", "agent", "user", "agent"]);
    let calls: Vec<&Value> = steps
        .iter()
        .filter_map(|step| step["extra"].get("call"))
        .collect();
    assert_eq!(calls, [0, 1, 3]);
    assert_eq!(
        steps[1]["tool_calls"],
        json!([{"tool_call_id": "c1", "function_name": "bash", "arguments": {"a": 1}}])
    );
    assert_eq!(steps[1]["metrics"]["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(steps[1]["metrics"]["completion_token_ids"], json!([10, 11, 12]));
    assert_eq!(steps[1]["metrics"]["logprobs"], json!([-1.25, -1.375, -1.5]));
    assert_eq!(steps[1]["extra"]["policy_version_at_completion"], "8");
    assert_eq!(steps[1]["timestamp"], "1970-01-01T00:00:00Z");
    let reference = &steps[3]["observation"]["results"][0]["subagent_trajectory_ref"][0];
    let embedded = document["subagent_trajectories"].as_array().unwrap();
    assert_eq!(embedded.len(), 1);
    assert_eq!(reference["trajectory_id"], embedded[0]["trajectory_id"]);
    assert_eq!(embedded[0]["steps"][1]["message"], "seen");
    assert_eq!(
        document["final_metrics"],
        json!({"total_prompt_tokens": 18, "total_completion_tokens": 6, "total_steps": 6})
    );
    assert_eq!(
        (&document["extra"]["schema"], &document["extra"]["reward"]),
        (&json!("dressage.atif"), &json!(0.5))
    );
    assert_eq!(found(&documents).list, []);
}

#[test]
fn what_a_tool_gave_back_is_the_observation_of_the_step_that_called_it() {
    let mut said = vec![user("go")];
    let first = call(0, &said).tokens(&[1], &[10]).reply("a", Some("c1"));
    said.extend([
        assistant("a", Some("c1")),
        json!({"role": "tool", "tool_call_id": "c1", "content": "out"}),
    ]);
    said.push(json!({"role": "tool", "tool_call_id": "c9", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}));
    let second = call(1, &said).tokens(&[1, 10, 2], &[20]).reply("b", None);
    let documents = exported(vec![first, second], Shape::Atif, Selection::default());
    let steps = &documents[0]["steps"];
    assert_eq!(
        steps[1]["observation"],
        json!({"results": [{"source_call_id": "c1", "content": "out"}]})
    );
    let lost = json!({"content": "x[image_url]", "extra": {"tool_call_id": "c9",
        "content_parts": [{"type": "text", "text": "x"}, {"type": "image_url"}]}});
    assert_eq!(
        (&steps[2]["source"], &steps[2]["observation"]["results"][0]),
        (&json!("system"), &lost)
    );
    assert_eq!(found(&documents).list, []);
}

#[test]
fn damage_of_documents_in_atif_is_found() {
    let document = || exported(with_sub_agent(), Shape::Atif, Selection::default()).remove(0);
    for (damage, change) in [
        (
            Damage::Messages,
            (|document| document["steps"][2]["step_id"] = json!(9)) as fn(&mut Value),
        ),
        (Damage::Messages, |document| {
            document["steps"][0]["metrics"] = json!({})
        }),
        (Damage::Messages, |document| {
            document["steps"][0]["source"] = json!("robot")
        }),
        (Damage::Messages, |document| {
            document["steps"][3]["observation"]["results"][0]["source_call_id"] = json!("nobody's")
        }),
        (Damage::Messages, |document| document["steps"] = json!([])),
        (Damage::LengthsDiffer, |document| {
            document["steps"][1]["metrics"]["logprobs"]
                .as_array_mut()
                .unwrap()
                .pop();
        }),
        (Damage::LengthsDiffer, |document| {
            document["final_metrics"]["total_steps"] = json!(1)
        }),
        (Damage::LogprobPositive, |document| {
            document["steps"][1]["metrics"]["logprobs"][0] = json!(0.5)
        }),
        (Damage::UsageDiffers, |document| {
            document["steps"][1]["metrics"]["completion_tokens"] = json!(9)
        }),
        (Damage::FlagsInconsistent, |document| {
            document["steps"][1]["extra"]["flags"] = json!(["ids_disagree"])
        }),
        (Damage::TrainedTwice, |document| {
            document["steps"][3]["extra"]["call"] = json!(0)
        }),
        (Damage::ContentMissing, |document| {
            document["subagent_trajectories"].as_array_mut().unwrap().clear();
        }),
        (Damage::Unreadable, |document| document["unheard_of"] = json!(1)),
        (Damage::Unreadable, |document| document["agent"] = Value::Null),
        (Damage::UnknownSchema, |document| {
            document["schema_version"] = json!("ATIF-v2.0")
        }),
    ] {
        let findings = damaged(document(), change);
        assert!(
            findings.iter().any(|finding| finding.damage == damage),
            "{damage}: {findings:#?}"
        );
    }
}
