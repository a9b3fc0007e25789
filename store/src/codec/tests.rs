use super::*;
use proptest::prelude::*;

fn log_probability() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-20.0_f32..=0.0).prop_map(f64::from),
        2 => (-20.0_f32..=0.0).prop_map(|value| value.to_string().parse().unwrap()),
        1 => -20.0_f64..=0.0,
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => prop::sample::select(vec![f64::NAN, f64::NEG_INFINITY, -9999.0, -0.0, 0.0, f64::MIN_POSITIVE]),
    ]
}

fn alternative() -> impl Strategy<Value = TopLogprob> {
    (
        prop::sample::select(vec!["", "a", "é", "token_id:7"]),
        prop::option::of(any::<u32>()),
        log_probability(),
    )
        .prop_map(|(token, token_id, logprob)| TopLogprob {
            token: token.into(),
            token_id,
            logprob,
        })
}

fn completion() -> impl Strategy<Value = Completion> {
    (
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..20),
        prop::collection::vec(log_probability(), 0..20),
        prop::collection::vec(".{0,3}", 0..10),
        prop::collection::vec(prop::collection::vec(alternative(), 0..4), 0..8),
        prop::option::of(".{0,5}"),
        prop::option::of(".{0,5}"),
    )
        .prop_map(
            |(index, token_ids, logprobs, tokens, top_logprobs, finish_reason, stop_reason)| Completion {
                index,
                token_ids,
                logprobs,
                tokens,
                top_logprobs,
                finish_reason,
                stop_reason,
            },
        )
}

fn delta() -> impl Strategy<Value = Option<TokenDelta>> {
    let delta = (
        prop::option::of(any::<u32>()),
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..30),
    );
    prop::option::of(delta.prop_map(|(base, shared, tail)| TokenDelta { base, shared, tail }))
}

/// Bits, since a NaN is not equal to itself and zeros of both signs are.
fn bits(completions: &[Completion]) -> Vec<u64> {
    let bits = |choice: &Completion| {
        let alternatives: Vec<f64> = choice
            .top_logprobs
            .iter()
            .flatten()
            .map(|top| top.logprob)
            .collect();
        choice
            .logprobs
            .iter()
            .chain(&alternatives)
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    completions.iter().flat_map(bits).collect()
}

/// Without the values that [`bits`] compares.
fn rest(completions: &[Completion]) -> Vec<Completion> {
    let mut completions = completions.to_vec();
    for choice in &mut completions {
        choice.logprobs.fill(0.0);
        choice
            .top_logprobs
            .iter_mut()
            .flatten()
            .for_each(|top| top.logprob = 0.0);
    }
    completions
}

proptest! {
    #[test]
    fn every_bit_comes_back(prompt in delta(), completions in prop::collection::vec(completion(), 0..3)) {
        let encoded = encode(prompt.as_ref(), &completions);
        let (prompt_back, back) = decode(&encoded).unwrap();
        prop_assert_eq!(&prompt_back, &prompt);
        prop_assert_eq!(bits(&back), bits(&completions));
        prop_assert_eq!(rest(&back), rest(&completions));
        for end in 0..encoded.len() {
            prop_assert!(decode(&encoded[..end]).is_err(), "cut off at {end} of {}", encoded.len());
        }
        prop_assert!(matches!(decode(&[encoded.as_slice(), &[0]].concat()), Err(CodecError::Trailing)));
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _: Result<_, CodecError> = decode(&bytes);
        let _: Result<_, CodecError> = decode(&[&[VERSION, 1, 0, 0], bytes.as_slice()].concat());
        let _: Result<_, CodecError> = crate::packed::unpack(&bytes);
    }
}

#[test]
fn floats_take_the_shortest_form_that_is_exact() {
    let size = |values: &[f64]| {
        let mut out = Writer(Vec::new());
        out.floats(values);
        (out.0[1], out.0.len() - 2)
    };
    assert_eq!(
        size(&[-0.12300000339746475, f64::NAN]),
        (FLOATS_32, 8),
        "a float printed with all digits"
    );
    assert_eq!(
        size(&[-0.123, -1.5]),
        (FLOATS_32_DECIMAL, 8),
        "a float printed with as few digits as will do"
    );
    assert_eq!(size(&[-0.123, -0.12345678901234567]), (FLOATS_64, 16));
}

#[test]
fn another_version_is_refused_by_its_number() {
    assert!(matches!(
        decode(&[9, 0, 0]),
        Err(CodecError::Version { version: 9 })
    ));
    assert!(matches!(
        crate::packed::unpack(&[7, 0]),
        Err(CodecError::Version { version: 7 })
    ));
}

#[test]
fn a_damaged_frame_is_noticed() {
    let bytes = b"what was said, what was said, what was said, what was said, and more".repeat(3);
    let packed = crate::packed::Packer::new().pack(&bytes);
    assert!(packed.len() < bytes.len());
    assert_eq!(crate::packed::unpack(&packed).unwrap(), bytes);
    for at in 1..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x40;
        assert!(
            !crate::packed::unpack(&damaged).is_ok_and(|back| back != bytes),
            "a flip at {at} gave other bytes"
        );
    }
}
