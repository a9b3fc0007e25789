use super::raw::{Items, Raw};
use crate::capture::RequestError;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

/// The most names that are kept of what was lost: a request can have any number of unknown members.
const MOST_LOST: usize = 64;

/// What of a request could not be carried over, by place.
#[derive(Debug, Default)]
pub(crate) struct Lost(BTreeSet<String>);

impl Lost {
    /// Notes a place such as `messages.content.document`, without positions.
    pub(crate) fn add(&mut self, place: &str) {
        if self.0.len() < MOST_LOST && !self.0.contains(place) {
            self.0.insert(place.to_owned());
        }
    }

    /// The places, sorted.
    pub(crate) fn into_names(self) -> Vec<String> {
        self.0.into_iter().collect()
    }
}

/// Where in a request something is.
#[derive(Clone, Debug, Default)]
struct Place(SmallVec<[Step; 4]>);

#[derive(Clone, Copy, Debug)]
struct Step {
    member: &'static str,
    position: Option<usize>,
}

impl Place {
    fn to(&self, member: &'static str, position: Option<usize>) -> Self {
        let mut place = self.clone();
        place.0.push(Step { member, position });
        place
    }

    /// Such as `messages[3].content[0].type`, with `name` as the last step where it is not empty.
    fn written(&self, name: &str, positions: bool) -> String {
        let mut text = String::new();
        for Step { member, position } in &self.0 {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(member);
            if let Some(position) = position.filter(|_| positions) {
                text.push_str(&format!("[{position}]"));
            }
        }
        if !name.is_empty() {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(name);
        }
        text
    }
}

/// The members of an object of a request. Each is taken once; what is left at the end was not understood.
///
/// A member that is `null` is as good as none, and of those with the same name the last counts. A name in camel case is
/// found in snake case as well, as Google's services do.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    place: Place,
    members: SmallVec<[Member<'a>; 4]>,
}

#[derive(Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    value: Raw<'a>,
    taken: bool,
}

/// A member that is a text or a list of parts.
pub(crate) enum Said<'a> {
    /// It is not there.
    Nothing,
    /// What stands between the quotes of a string.
    Text(&'a [u8]),
    /// The parts, each an object.
    Parts(Objects<'a>),
}

impl<'a> Fields<'a> {
    /// The members of a whole request, which was found to be JSON.
    pub(crate) fn of_request(text: &'a [u8]) -> Result<Self, RequestError> {
        let request = Raw::new(text);
        let mut seen = HashSet::new();
        for (name, _) in request.members().ok_or(RequestError::NotAnObject)? {
            if let Some(member) = seen.replace(name) {
                return Err(RequestError::DuplicateMember {
                    member: member.into_owned(),
                });
            }
        }
        Self::of(Place::default(), request)
    }

    /// The members of a value, which has to be an object.
    fn of(place: Place, value: Raw<'a>) -> Result<Self, RequestError> {
        let Some(members) = value.members() else {
            return Err(RequestError::Malformed {
                place: place.written("", true),
                expected: "an object",
            });
        };
        let members = members
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| Member {
                name,
                value,
                taken: false,
            });
        Ok(Self {
            members: members.collect(),
            place,
        })
    }

    /// The only object where a list of them is expected too.
    pub(crate) fn of_only(&self, name: &'static str, value: Raw<'a>) -> Result<Self, RequestError> {
        Self::of(self.place.to(name, None), value)
    }

    fn find(&self, name: &str) -> Option<&Member<'a>> {
        let named = |name: &str| {
            self.members
                .iter()
                .rfind(|member| !member.taken && member.name == name)
        };
        let in_camel_case = || name.bytes().any(|letter| letter.is_ascii_uppercase());
        named(name).or_else(|| in_camel_case().then(|| named(&snake_case(name))).flatten())
    }

    /// Whether a member is there that says something.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Looks at a member.
    pub(crate) fn peek(&self, name: &str) -> Option<Raw<'a>> {
        self.find(name).map(|member| member.value)
    }

    /// Looks at a string that has to be there.
    pub(crate) fn peek_text(&self, name: &str) -> Result<Cow<'a, str>, RequestError> {
        let text = self.peek(name).and_then(Raw::text);
        text.ok_or_else(|| self.wrong(name, "a string"))
    }

    /// Takes a member.
    pub(crate) fn take(&mut self, name: &str) -> Option<Raw<'a>> {
        let found = self.find(name)?;
        let (known, value) = (found.name.clone(), found.value);
        for member in self.members.iter_mut().filter(|member| member.name == known) {
            member.taken = true;
        }
        Some(value)
    }

    /// Takes a string, as what stands between its quotes.
    pub(crate) fn body(&mut self, name: &str) -> Result<Option<&'a [u8]>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.body().map(Some).ok_or_else(|| self.wrong(name, "a string")),
        }
    }

    /// Takes a string that has to be there, as what stands between its quotes.
    pub(crate) fn needed_body(&mut self, name: &str) -> Result<&'a [u8], RequestError> {
        self.body(name)?.ok_or_else(|| self.wrong(name, "a string"))
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, RequestError> {
        Ok(self.body(name)?.map(crate::scan::decode_string))
    }

    /// Takes a string that has to be there.
    pub(crate) fn needed_text(&mut self, name: &str) -> Result<Cow<'a, str>, RequestError> {
        self.needed_body(name).map(crate::scan::decode_string)
    }

    /// Takes a switch; `false` where it is not there.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, RequestError> {
        match self.take(name).as_ref().map(Raw::as_ref) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(self.wrong(name, "a boolean")),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Self>, RequestError> {
        let value = self.take(name);
        value.map(|value| self.of_only(name, value)).transpose()
    }

    /// Takes a list; empty where it is not there.
    pub(crate) fn list(
        &mut self,
        name: &str,
    ) -> Result<impl Iterator<Item = Raw<'a>> + use<'a>, RequestError> {
        let items = match self.take(name) {
            None => None,
            Some(value) => Some(value.items().ok_or_else(|| self.wrong(name, "an array"))?),
        };
        Ok(items.into_iter().flatten())
    }

    /// Takes a list of objects.
    pub(crate) fn objects(&mut self, name: &'static str) -> Result<Objects<'a>, RequestError> {
        let items = match self.take(name) {
            None => None,
            Some(value) => Some(value.items().ok_or_else(|| self.wrong(name, "an array"))?),
        };
        Ok(self.objects_of(name, items))
    }

    /// Takes a text or a list of parts.
    pub(crate) fn said(
        &mut self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Said<'a>, RequestError> {
        let Some(value) = self.take(name) else {
            return Ok(Said::Nothing);
        };
        if let Some(body) = value.body() {
            return Ok(Said::Text(body));
        }
        let items = value.items().ok_or_else(|| self.wrong(name, expected))?;
        Ok(Said::Parts(self.objects_of(name, Some(items))))
    }

    fn objects_of(&self, member: &'static str, items: Option<Items<'a>>) -> Objects<'a> {
        Objects {
            place: self.place.clone(),
            member,
            items,
            position: 0,
        }
    }

    /// An error about a member.
    pub(crate) fn wrong(&self, name: &str, expected: &'static str) -> RequestError {
        RequestError::Malformed {
            place: self.place.written(name, true),
            expected,
        }
    }

    /// Says that what is named in the object cannot be carried over, or the object itself where the name is empty.
    pub(crate) fn lose(&self, name: &str, lost: &mut Lost) {
        lost.add(&self.place.written(name, false));
    }

    /// Notes what was not taken.
    pub(crate) fn end(self, lost: &mut Lost) {
        for member in self.members.iter().filter(|member| !member.taken) {
            self.lose(&member.name, lost);
        }
    }
}

/// The objects of a list, with their places.
#[derive(Debug)]
pub(crate) struct Objects<'a> {
    place: Place,
    member: &'static str,
    items: Option<Items<'a>>,
    position: usize,
}

impl<'a> Iterator for Objects<'a> {
    type Item = Result<Fields<'a>, RequestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.as_mut()?.next()?;
        let place = self.place.to(self.member, Some(self.position));
        self.position += 1;
        Some(Fields::of(place, item))
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
