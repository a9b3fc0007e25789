use super::body::{Body, is_empty};
use crate::sampling::Sampling;
use crate::scan::parse_f64;

/// Members by which a request bends the distribution, each with the number that leaves it as it is. `null`, `false`, 0
/// and empty values leave it so too.
const ALTERS_SAMPLING: [(&str, f64); 29] = [
    ("logit_bias", 0.0),
    ("structured_outputs", 0.0),
    ("guided_json", 0.0),
    ("guided_regex", 0.0),
    ("guided_choice", 0.0),
    ("guided_grammar", 0.0),
    ("grammar", 0.0),
    ("json_schema", 0.0),
    ("regex", 0.0),
    ("ebnf", 0.0),
    ("structural_tag", 0.0),
    ("bad_words", 0.0),
    ("allowed_token_ids", 0.0),
    ("min_tokens", 0.0),
    ("ignore_eos", 0.0),
    ("logits_processors", 0.0),
    ("use_beam_search", 0.0),
    ("best_of", 1.0),
    ("typical_p", 1.0),
    ("top_n_sigma", -1.0),
    ("top_a", 0.0),
    ("tfs_z", 1.0),
    ("xtc_probability", 0.0),
    ("mirostat", 0.0),
    ("dry_multiplier", 0.0),
    ("dynatemp_range", 0.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("samplers", 0.0),
];

/// Puts these parameters over the agent's.
pub(super) fn set_sampling(body: &mut Body<'_>, sampling: &Sampling) {
    let numbers = [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("min_p", sampling.min_p),
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
        ("repetition_penalty", sampling.repetition_penalty),
    ];
    for (name, value) in numbers {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            body.set(name, format!("{value:?}").into_bytes());
        }
    }
    for (name, value) in [("top_k", sampling.top_k), ("seed", sampling.seed)] {
        if let Some(value) = value {
            body.set(name, value.to_string().into_bytes());
        }
    }
}

/// Whether the agent bends the distribution.
pub(super) fn alters_sampling(body: &Body<'_>) -> bool {
    let bends = |(name, neutral): &(&str, f64)| {
        body.get(name).is_some_and(|value| {
            !is_empty(value) && parse_f64(value).is_none_or(|number| number != 0.0 && number != *neutral)
        })
    };
    let format = body
        .get("response_format")
        .filter(|value| value.starts_with(b"{"));
    let formatted = format
        .and_then(|format| Body::read(format).ok())
        .is_some_and(|format| format.get("type") != Some(b"\"text\""));
    // A call that must be made is decoded under a grammar.
    let forced = body
        .get("tool_choice")
        .is_some_and(|choice| choice == b"\"required\"" || choice.starts_with(b"{"));
    ALTERS_SAMPLING.iter().any(bends) || formatted || forced
}
