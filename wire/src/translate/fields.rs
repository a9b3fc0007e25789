use crate::capture::RequestError;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The most names that are kept of what was lost: a request can have any number of unknown members.
const MOST_LOST: usize = 64;

/// What of a request could not be carried over, by place.
#[derive(Debug, Default)]
pub(crate) struct Lost(BTreeSet<String>);

impl Lost {
    /// Notes a place such as `messages[3].content[0].document`; positions are left out.
    pub(crate) fn add(&mut self, place: &str) {
        if self.0.len() >= MOST_LOST {
            return;
        }
        let mut name = String::with_capacity(place.len());
        let mut rest = place;
        while let Some((before, after)) = rest.split_once('[') {
            name.push_str(before);
            rest = after.split_once(']').map_or("", |(_, after)| after);
        }
        name.push_str(rest);
        self.0.insert(name);
    }

    /// The places, sorted.
    pub(crate) fn into_names(self) -> Vec<String> {
        self.0.into_iter().collect()
    }
}

/// The members of an object of a request. Each is taken once; what is left at the end was not understood.
///
/// A member that is `null` is as good as none. A name in camel case is found in snake case as well, as Google's services
/// do.
#[derive(Debug)]
pub(crate) struct Fields {
    place: String,
    members: Map<String, Value>,
}

impl Fields {
    /// The members of the whole request.
    pub(crate) fn of_request(members: Map<String, Value>) -> Self {
        Self {
            place: String::new(),
            members,
        }
    }

    /// The members of a value, which has to be an object.
    pub(crate) fn of(place: String, value: Value) -> Result<Self, RequestError> {
        match value {
            Value::Object(members) => Ok(Self { place, members }),
            _ => Err(RequestError::Malformed {
                place,
                expected: "an object",
            }),
        }
    }

    /// The place of a member.
    pub(crate) fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.place)
        }
    }

    /// The place of the object itself.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Whether a member is there that says something.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|value| !value.is_null())
    }

    /// Looks at a member.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Looks at a string that has to be there.
    pub(crate) fn peek_text(&self, name: &str) -> Result<&str, RequestError> {
        let text = self.peek(name).and_then(Value::as_str);
        text.ok_or_else(|| self.wrong(name, "a string"))
    }

    /// Takes a member.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        let found = match self.members.shift_remove(name) {
            None if name.bytes().any(|letter| letter.is_ascii_uppercase()) => {
                self.members.shift_remove(&snake_case(name))
            }
            found => found,
        };
        found.filter(|value| !value.is_null())
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// Takes a string that has to be there.
    pub(crate) fn needed_text(&mut self, name: &str) -> Result<String, RequestError> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "a string"))
    }

    /// Takes a switch; `false` where it is not there.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, RequestError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(on),
            Some(_) => Err(self.wrong(name, "a boolean")),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, RequestError> {
        let place = self.place_of(name);
        self.take(name).map(|value| Self::of(place, value)).transpose()
    }

    /// Takes an array; empty where it is not there.
    pub(crate) fn array(&mut self, name: &str) -> Result<Vec<Value>, RequestError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.wrong(name, "an array")),
        }
    }

    /// Takes an array of objects.
    pub(crate) fn objects(&mut self, name: &str) -> Result<Vec<Self>, RequestError> {
        let place = self.place_of(name);
        let items = self.array(name)?.into_iter().enumerate();
        items
            .map(|(position, item)| Self::of(format!("{place}[{position}]"), item))
            .collect()
    }

    /// An error about a member.
    pub(crate) fn wrong(&self, name: &str, expected: &'static str) -> RequestError {
        RequestError::Malformed {
            place: self.place_of(name),
            expected,
        }
    }

    /// Says that the object as a whole, or what is named in it, cannot be carried over.
    pub(crate) fn lost_as(self, name: &str, lost: &mut Lost) {
        lost.add(&self.place_of(name));
    }

    /// Notes what was not taken.
    pub(crate) fn end(self, lost: &mut Lost) {
        for (name, value) in &self.members {
            if !value.is_null() {
                lost.add(&self.place_of(name));
            }
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
