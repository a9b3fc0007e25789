use super::{Alternative, LogprobsKind};

fn softmax(logits: &[f64], temperature: f64) -> Vec<Alternative> {
    let scaled: Vec<f64> = logits.iter().map(|logit| logit / temperature).collect();
    let sum: f64 = scaled.iter().map(|logit| logit.exp()).sum();
    scaled
        .iter()
        .enumerate()
        .map(|(token, logit)| (format!("t{token}"), logit - sum.ln()))
        .collect()
}

const LOGITS: [f64; 5] = [4.0, 2.5, 1.0, 0.5, -3.0];

#[test]
fn processed_log_probabilities_move_with_the_temperature() {
    let (one, two) = (softmax(&LOGITS, 1.0), softmax(&LOGITS, 2.0));
    assert_eq!(LogprobsKind::tell(&one, &two, 2.0), LogprobsKind::Processed);
}

#[test]
fn raw_log_probabilities_stay() {
    let one = softmax(&LOGITS, 1.0);
    assert_eq!(LogprobsKind::tell(&one, &one, 2.0), LogprobsKind::Raw);
}

#[test]
fn nothing_is_said_of_what_does_not_tell() {
    let one = softmax(&LOGITS, 1.0);
    let other: Vec<Alternative> = vec![("elsewhere".into(), -0.5)];
    assert_eq!(LogprobsKind::tell(&one, &other, 2.0), LogprobsKind::Unknown);
    let flat = softmax(&[1.0, 1.0, 1.0], 1.0);
    assert_eq!(LogprobsKind::tell(&flat, &flat, 2.0), LogprobsKind::Unknown);
    // One shared token alone has no distance.
    assert_eq!(
        LogprobsKind::tell(one.get(..1).unwrap(), &one, 2.0),
        LogprobsKind::Unknown
    );
    let broken: Vec<Alternative> = vec![("t0".into(), f64::NAN), ("t1".into(), -1.0)];
    assert_eq!(LogprobsKind::tell(&broken, &broken, 2.0), LogprobsKind::Unknown);
    assert_eq!(LogprobsKind::tell(&[], &one, 2.0), LogprobsKind::None);
    assert_eq!(LogprobsKind::tell(&one, &[], 2.0), LogprobsKind::None);
}
