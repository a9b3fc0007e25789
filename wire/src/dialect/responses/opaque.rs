use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How ours begins, so that another's is not taken for it.
const MARK: &str = "dressage1.";

/// Reasoning in a form that an agent hands back without reading it. Nothing is secret about it: Codex keeps of reasoning
/// this and the summary only.
pub(super) fn write(text: &str) -> String {
    format!("{MARK}{}", STANDARD.encode(text))
}

/// The reasoning in it; `None` where it is not ours.
pub(super) fn read(opaque: &str) -> Option<String> {
    let text = STANDARD.decode(opaque.strip_prefix(MARK)?).ok()?;
    String::from_utf8(text).ok()
}
