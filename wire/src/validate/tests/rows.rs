use super::*;

#[test]
fn rows_of_sequences_are_checked_by_themselves_and_with_those_before() {
    let rows = exported(conversation(), Shape::Verl, Selection::default());
    assert_eq!(rows.len(), 2, "a sequence without a trained token has no row");
    assert_eq!(rows[1]["prompt_ids"], json!([1, 2, 3, 10, 99, 4]));
    assert_eq!(rows[1]["response_ids"], json!([20, 21, 5, 30]));
    assert_eq!(rows[1]["response_mask"], json!([1, 1, 0, 1]));
    assert_eq!(rows[1]["response_logprobs"], json!([-2.5, -2.625, 0.0, -3.75]));
    assert_eq!(rows[0]["turns"][0]["policy_version_at_dispatch"], "7");
    assert_eq!(rows[0]["turns"][0]["policy_version_at_completion"], "8");
    let twice = found(&[rows[0].clone(), rows[1].clone(), rows[1].clone()]).list;
    assert_found(&twice, Damage::TrainedTwice, (Some(2), Some(1), None));
    let damage = |damage: &dyn Fn(&mut Value)| damaged(rows[1].clone(), damage);
    let place = |position| (Some(2), None, position);
    let findings = damage(&|row| row["response_mask"][2] = json!(1));
    assert_found(&findings, Damage::MaskOutsideTurns, place(Some(2)));
    assert_found(&findings, Damage::MaskSum, place(None));
    assert_found(
        &damage(&|row| row["response_mask"][0] = json!(0)),
        Damage::MaskIncomplete,
        place(Some(0)),
    );
    assert_found(
        &damage(&|row| row["response_logprobs"][1] = json!(0.5)),
        Damage::LogprobPositive,
        place(Some(1)),
    );
    assert_found(
        &damage(&|row| row["response_logprobs"][2] = json!(-0.5)),
        Damage::LogprobsDiffer,
        place(Some(2)),
    );
    assert_found(
        &damage(&|row| row["turns"][1]["end"] = json!(9)),
        Damage::TurnsMisplaced,
        place(Some(3)),
    );
    let findings = damage(&|row| {
        row["response_ids"].as_array_mut().unwrap().pop();
    });
    assert_found(&findings, Damage::LengthsDiffer, place(None));
}

#[test]
fn rows_of_turns_are_checked_by_the_rules_of_a_training_trace() {
    let row = exported(conversation(), Shape::Trl, Selection::default()).remove(0);
    let trace = |row: &Value| serde_json::from_str::<Value>(row["training_trace"].as_str().unwrap()).unwrap();
    let turns = trace(&row);
    assert_eq!(turns["turns"].as_array().unwrap().len(), 3, "the agent's own");
    assert_eq!(turns["turns"][1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1, 1]));
    assert_eq!(
        turns["turns"][1]["request"]["messages"].as_array().unwrap().len(),
        3
    );
    assert_eq!(turns["turns"][0]["metadata"]["policy_version_at_completion"], "8");
    let entries: Value = serde_json::from_str(row["trace_entries"].as_str().unwrap()).unwrap();
    assert_eq!(entries.as_array().unwrap().len(), 4);
    assert_eq!(entries[3]["role"], "auxiliary");
    let damage = |damage: &dyn Fn(&mut Value)| {
        let mut turns = trace(&row);
        damage(&mut turns["turns"][1]);
        damaged(row.clone(), |row| {
            row["training_trace"] = json!(turns.to_string())
        })
    };
    let place = |position| (Some(1), None, position);
    let node = turns["turns"][0]["node_id"].clone();
    assert_found(
        &damage(&|turn| turn["node_id"] = node.clone()),
        Damage::Duplicate,
        place(None),
    );
    assert_found(
        &damage(&|turn| turn["loss_mask"][0] = json!(1)),
        Damage::MaskOutsideTurns,
        place(Some(0)),
    );
    assert_found(
        &damage(&|turn| turn["per_token_logps"][1] = json!(1)),
        Damage::LogprobPositive,
        place(Some(1)),
    );
    assert_found(
        &damage(&|turn| turn["per_token_logps"] = json!([])),
        Damage::LengthsDiffer,
        place(None),
    );
    let flagged = damage(&|turn| turn["metadata"]["flags"] = json!(["budget"]));
    assert_found(&flagged, Damage::FlagsInconsistent, place(None));
    let counted = damage(&|turn| turn["metadata"]["usage_completion_tokens"] = json!(1));
    assert_found(&counted, Damage::UsageDiffers, place(None));
    assert_eq!(
        damage(&|turn| turn["more"] = json!(1))[0].damage,
        Damage::Unreadable
    );
}

#[test]
fn rows_of_conversations_hold_the_last_request_and_its_reply() {
    let rows = exported(conversation(), Shape::Chat, Selection::default());
    assert_eq!(rows.len(), 1, "the first two go on, and titles are not selected");
    let messages = rows[0]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        ["user", "assistant", "user", "assistant", "user", "assistant"]
    );
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    assert_eq!(messages[5]["content"], "c");
    assert_eq!(rows[0]["tools"], "[{\"type\":\"function\"}]");
    let last = damaged(rows[0].clone(), |row| {
        row["messages"].as_array_mut().unwrap().pop();
    });
    assert_found(&last, Damage::Messages, (Some(2), None, None));
}
