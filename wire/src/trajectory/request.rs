use crate::trajectory::ContentHash;
use crate::trajectory::record::{ArrayLayout, RequestParts};
use crate::trajectory::shape::BodyShape;
use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// What stands where something was taken out, so that the rest of a body is JSON still.
const NULL: &[u8] = b"null";

/// A body taken apart; all parts share its memory but `rest`.
pub(crate) struct Split {
    pub(crate) messages: Vec<Bytes>,
    pub(crate) layout: Option<ArrayLayout>,
    pub(crate) tools: Option<(u32, Bytes)>,
    pub(crate) rest: Bytes,
}

/// Takes the messages and tools out of a body. What is not of the dialect's shape is left in the rest, whatever it is.
pub(crate) fn split(body: &Bytes, shape: &BodyShape) -> Split {
    let members = serde_json::from_slice::<Members<'_>>(body).map_or_else(|_| Vec::new(), |found| found.0);
    let array = |name: &str| {
        let mut named = members.iter().filter(|(key, _)| key == name);
        let value = named.next().map(|(_, value)| value.get())?;
        (named.next().is_none() && value.starts_with('[')).then_some(value)
    };
    let messages = array(shape.messages).and_then(|text| items(body, text));
    let tools = array(shape.tools).map(|text| range(body, text));

    let mut cuts: Vec<Range<usize>> = Vec::new();
    cuts.extend(messages.as_ref().map(|found| found.array.clone()));
    cuts.extend(tools.clone());
    cuts.sort_by_key(|cut| cut.start);
    let (rest, places) = cut_out(body, &cuts);
    let place = |of: &Range<usize>| {
        let index = cuts.iter().position(|cut| cut == of)?;
        u32::try_from(*places.get(index)?).ok()
    };
    let (Some(messages_at), Some(tools_at)) = (
        messages
            .as_ref()
            .map_or(Some(None), |found| place(&found.array).map(Some)),
        tools.as_ref().map_or(Some(None), |range| place(range).map(Some)),
    ) else {
        return Split {
            messages: Vec::new(),
            layout: None,
            tools: None,
            rest: body.clone(),
        };
    };
    let layout = messages.as_ref().zip(messages_at).map(|(found, at)| ArrayLayout {
        at,
        open: found.open.to_owned(),
        between: found.between.to_owned(),
        close: found.close.to_owned(),
    });
    Split {
        messages: messages.map_or_else(Vec::new, |found| found.items),
        layout,
        tools: tools_at.zip(tools).map(|(at, range)| (at, body.slice(range))),
        rest,
    }
}

/// A content that a request refers to is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("content {hash} is missing")]
pub struct MissingContent {
    /// Which.
    pub hash: ContentHash,
}

/// Puts a body together again, byte for byte as the agent sent it. `messages` is the whole list, shared ones included.
///
/// # Errors
/// A content that `content` does not have.
pub fn assemble(
    parts: &RequestParts,
    messages: &[ContentHash],
    content: impl Fn(ContentHash) -> Option<Bytes>,
) -> Result<Vec<u8>, MissingContent> {
    let get = |hash| content(hash).ok_or(MissingContent { hash });
    let rest = get(parts.rest)?;
    let mut inserts: Vec<(usize, Vec<u8>)> = Vec::new();
    if let Some(layout) = &parts.layout {
        let mut array = Vec::new();
        array.push(b'[');
        array.extend_from_slice(layout.open.as_bytes());
        for (index, hash) in messages.iter().enumerate() {
            if index > 0 {
                array.extend_from_slice(layout.between.as_bytes());
            }
            array.extend_from_slice(&get(*hash)?);
        }
        array.extend_from_slice(layout.close.as_bytes());
        array.push(b']');
        inserts.push((offset(layout.at), array));
    }
    if let Some((at, hash)) = &parts.tools {
        inserts.push((offset(*at), get(*hash)?.to_vec()));
    }
    inserts.sort_by_key(|(at, _)| *at);

    let mut body = Vec::new();
    let mut done = 0;
    for (at, text) in inserts {
        body.extend_from_slice(rest.get(done..at).unwrap_or_default());
        body.extend_from_slice(&text);
        done = at + NULL.len();
    }
    body.extend_from_slice(rest.get(done..).unwrap_or_default());
    Ok(body)
}

fn offset(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// The items of an array, and how it is written.
struct Items<'a> {
    array: Range<usize>,
    items: Vec<Bytes>,
    open: &'a str,
    between: &'a str,
    close: &'a str,
}

/// Finds the items of the array `text` of `body`; `None` where they are not all separated alike.
fn items<'a>(body: &Bytes, text: &'a str) -> Option<Items<'a>> {
    let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    let start = range(body, text).start;
    let spans: Vec<Range<usize>> = values
        .iter()
        .map(|value| {
            let span = range(body, value.get());
            span.start - start..span.end - start
        })
        .collect();
    let inner_end = text.len().checked_sub(1)?;
    let first = spans.first().map_or(inner_end, |span| span.start);
    let last = spans.last().map_or(inner_end, |span| span.end);
    let mut gaps = spans.windows(2).map(|pair| match pair {
        [a, b] => text.get(a.end..b.start),
        _ => None,
    });
    let between = gaps.next().unwrap_or(Some(""))?;
    if gaps.any(|gap| gap != Some(between)) {
        return None;
    }
    Some(Items {
        array: range(body, text),
        items: values
            .iter()
            .map(|value| body.slice_ref(value.get().as_bytes()))
            .collect(),
        open: text.get(1..first)?,
        between,
        close: text.get(last..inner_end)?,
    })
}

/// Where `part`, a slice of `body`, lies in it.
fn range(body: &Bytes, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start + part.len()
}

/// `body` with `null` for each of `cuts` (in order, apart from each other), and where each `null` stands.
fn cut_out(body: &Bytes, cuts: &[Range<usize>]) -> (Bytes, Vec<usize>) {
    if cuts.is_empty() {
        return (body.clone(), Vec::new());
    }
    let mut rest = Vec::new();
    let mut places = Vec::new();
    let mut done = 0;
    for cut in cuts {
        rest.extend_from_slice(body.get(done..cut.start).unwrap_or_default());
        places.push(rest.len());
        rest.extend_from_slice(NULL);
        done = cut.end;
    }
    rest.extend_from_slice(body.get(done..).unwrap_or_default());
    (rest.into(), places)
}

/// The members of an object in order, values unread; a name may come more than once.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    members.push((member.0.0, member.1));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Visit)
    }
}

/// A member's name, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
