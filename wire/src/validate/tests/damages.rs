use super::*;

#[test]
fn damage_01_lists_of_different_length() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["logprobs"].as_array_mut().unwrap().pop();
    });
    assert_found(&findings, Damage::LengthsDiffer, (Some(1), None, None));
}

#[test]
fn damage_02_a_token_that_the_endpoint_did_not_see() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["token_ids"][4] = json!(98)
    });
    assert_found(&findings, Damage::TokensDiffer, (Some(1), None, Some(4)));
    assert_eq!(findings[0].message, "token 98 where the endpoint saw token 99");
    assert_eq!(findings[0].place.rollout.as_ref().map(String::len), Some(36));
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["completions"][0]["token_ids"][0] = json!(22)
    });
    assert_found(&findings, Damage::TokensDiffer, (Some(1), None, Some(6)));
}

#[test]
fn damage_03_a_mask_over_what_was_not_sampled() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["loss_mask"][2] = json!(1)
    });
    assert_found(&findings, Damage::MaskOutsideTurns, (Some(1), None, Some(2)));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["loss_mask"][7] = json!(2)
    });
    assert_found(&findings, Damage::MaskInvalid, (Some(1), None, Some(7)));
}

#[test]
fn damage_04_a_token_that_is_left_out_of_the_mask() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][0]["loss_mask"][5] = json!(0)
    });
    assert_found(&findings, Damage::MaskIncomplete, (Some(0), None, Some(5)));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
}

#[test]
fn damage_05_log_probabilities_above_zero_not_finite_or_of_another_token() {
    let set = |value: Value| damaged(native_line(), |line| line["sequences"][0]["logprobs"][4] = value);
    assert_found(
        &set(json!(0.25)),
        Damage::LogprobPositive,
        (Some(0), None, Some(4)),
    );
    assert_found(
        &set(json!(-0.25)),
        Damage::LogprobsDiffer,
        (Some(0), None, Some(4)),
    );
    assert_eq!(set(Value::Null)[0].damage, Damage::Unreadable);
    let findings = damaged(native_line(), |line| {
        line["calls"][0]["completions"][0]["logprobs"][1] = Value::Null
    });
    assert_found(&findings, Damage::NotFinite, (None, Some(0), Some(1)));
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(0), None));
    let rounded = damaged(native_line(), |line| {
        line["sequences"][0]["logprobs"][0] = json!(1e-9)
    });
    assert!(
        rounded
            .iter()
            .all(|finding| finding.damage != Damage::LogprobPositive),
        "{rounded:?}"
    );
}

#[test]
fn damage_06_a_count_of_the_endpoint_that_does_not_agree() {
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["meta"]["usage"]["completion_tokens"] = json!(3)
    });
    assert_found(&findings, Damage::UsageDiffers, (None, Some(1), None));
}

#[test]
fn damage_07_turns_that_overlap_or_are_elsewhere() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["turns"][1]["start"] = json!(7)
    });
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), None, Some(7)));
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), Some(2), Some(7)));
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["turns"].as_array_mut().unwrap().swap(0, 1);
    });
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), None, Some(6)));
}

#[test]
fn damage_08_a_completion_that_is_trained_twice_or_not_at_all() {
    let findings = damaged(native_line(), |line| {
        let again = line["sequences"][0].clone();
        line["sequences"].as_array_mut().unwrap().push(again);
    });
    assert_found(&findings, Damage::TrainedTwice, (Some(3), Some(0), None));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
    let findings = damaged(native_line(), |line| {
        line["sequences"].as_array_mut().unwrap().remove(0);
    });
    assert_found(&findings, Damage::NotTrained, (None, Some(0), None));
}

#[test]
fn damage_09_flags_that_do_not_fit_what_is_trained() {
    let findings = damaged(native_line(), |line| {
        line["calls"][2]["flags"] = json!(["logprobs_raw"]);
        line["calls"][2]["meta"]["flags"] = json!(["logprobs_raw"]);
    });
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(2), None));
    let message = |finding: &Finding| finding.message == "call 2 is trainable in spite of: logprobs_raw";
    assert!(findings.iter().any(message), "{findings:#?}");
    let findings = damaged(native_line(), |line| line["calls"][3]["trainable"] = json!(true));
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(3), None));
    let findings = damaged(native_line(), |line| {
        line["calls"][0]["flags"] = json!(["superseded"])
    });
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(0), None));
}

#[test]
fn damage_10_a_call_that_others_rest_on_is_gone() {
    let findings = damaged(native_line(), |line| {
        line["calls"].as_array_mut().unwrap().remove(0);
    });
    assert_found(&findings, Damage::BaseMissing, (None, Some(1), None));
    assert_found(&findings, Damage::BaseMissing, (Some(0), Some(0), None));
    let findings = damaged(native_line(), |line| line["calls"][1]["continues"] = json!(2));
    assert_found(&findings, Damage::BaseMissing, (None, Some(1), None));
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["prompt"]["shared"] = json!(7)
    });
    assert_found(&findings, Damage::LengthsDiffer, (None, Some(1), None));
}

#[test]
fn damage_11_something_said_that_was_changed_or_is_gone() {
    let findings = damaged(native_line(), |line| line["contents"][2]["text"] = json!("{}"));
    assert_found(&findings, Damage::ContentChanged, (None, None, Some(2)));
    let findings = damaged(native_line(), |line| {
        line["contents"].as_array_mut().unwrap().pop();
    });
    assert!(
        findings
            .iter()
            .any(|finding| finding.damage == Damage::ContentMissing),
        "{findings:#?}"
    );
}

#[test]
fn damage_12_an_index_that_is_there_twice() {
    let findings = damaged(native_line(), |line| line["calls"][2]["meta"]["index"] = json!(1));
    assert_found(&findings, Damage::Duplicate, (None, Some(1), None));
}

#[test]
fn damage_13_an_outcome_of_another_rollout() {
    let findings = damaged(native_line(), |line| {
        line["outcome"]["id"] = json!(RolloutId::new())
    });
    assert_found(&findings, Damage::Outcome, (None, None, None));
    let findings = damaged(native_line(), |line| line["outcome"] = Value::Null);
    assert_found(&findings, Damage::Outcome, (None, None, None));
}

#[test]
fn damage_14_lines_that_are_cut_or_of_another_schema() {
    let mut findings = Findings::default();
    let line_text = native_line().to_string();
    line(&line_text.as_bytes()[..line_text.len() / 2], &mut findings);
    line(b"\xff", &mut findings);
    line(
        br#"{"schema": "dressage.trajectory", "schema_version": 99}"#,
        &mut findings,
    );
    line(br#"{"schema": "other"}"#, &mut findings);
    line(
        br#"{"schema": "dressage.verl", "schema_version": 1}"#,
        &mut findings,
    );
    let kinds: Vec<Damage> = findings.list.iter().map(|finding| finding.damage).collect();
    let expected = [
        Damage::Unreadable,
        Damage::Unreadable,
        Damage::UnknownSchema,
        Damage::UnknownSchema,
        Damage::Unreadable,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn every_kind_of_damage_has_a_word_of_its_own() {
    for damage in Damage::ALL {
        assert_eq!(serde_json::to_value(damage).unwrap(), damage.name());
        let row = format!("| `{damage}` | {} |\n", damage.meaning());
        assert!(
            include_str!("../../../../docs/export.md").contains(&row),
            "docs/export.md lacks {row}"
        );
    }
}
