use serde::{Deserialize, Serialize};

/// Sampling parameters. `None` means "nobody said"; what is set here is put on every call over what the agent sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 and up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Over 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// -1 or 0 turn it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// 0 turns it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// 0 turns it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// 0 turns it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// 1 turns it off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// Same seed, same text, where the server keeps that promise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
}

impl Sampling {
    /// What takes no token's probability away: what token capture sends where nothing was asked for, since a server's
    /// own defaults (a model's generation_config) would make training off-policy. Temperature and seed stay unset.
    #[must_use]
    pub fn neutral() -> Self {
        Self {
            top_p: Some(1.0),
            top_k: Some(-1),
            min_p: Some(0.0),
            presence_penalty: Some(0.0),
            frequency_penalty: Some(0.0),
            repetition_penalty: Some(1.0),
            ..Self::default()
        }
    }

    /// Whether tokens are sampled from the very distribution that the model gives: temperature 1, and nothing taken
    /// away. What nobody said is the server's choice, and not taken for that.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let is = |value: Option<f64>, neutral: f64| value == Some(neutral);
        is(self.temperature, 1.0)
            && is(self.top_p, 1.0)
            && self.top_k.is_some_and(|top_k| top_k <= 0)
            && is(self.min_p, 0.0)
            && is(self.presence_penalty, 0.0)
            && is(self.frequency_penalty, 0.0)
            && is(self.repetition_penalty, 1.0)
    }

    /// These parameters, and where one is unset, that of `under`.
    #[must_use]
    pub fn over(&self, under: &Self) -> Self {
        Self {
            temperature: self.temperature.or(under.temperature),
            top_p: self.top_p.or(under.top_p),
            top_k: self.top_k.or(under.top_k),
            min_p: self.min_p.or(under.min_p),
            presence_penalty: self.presence_penalty.or(under.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(under.frequency_penalty),
            repetition_penalty: self.repetition_penalty.or(under.repetition_penalty),
            seed: self.seed.or(under.seed),
        }
    }
}
