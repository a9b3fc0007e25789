use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::borrow::Cow;

/// A column, or a member of a structure. Each may be null.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Text in UTF-8.
    Text,
    /// A signed integer of 64 bits.
    Integer,
    /// A float of 64 bits.
    Float,
    /// True or false.
    Bool,
    /// A list, of which no item is null.
    List(&'static Kind),
    /// A structure.
    Struct(&'static [Column]),
}

/// A column's value in a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// None.
    Null,
    /// Of [`Kind::Text`].
    Text(Cow<'a, str>),
    /// Of [`Kind::Integer`].
    Integer(i64),
    /// Of [`Kind::Float`].
    Float(f64),
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// A list of [`Kind::Integer`]: token ids.
    Ids(Cow<'a, [u32]>),
    /// A list of [`Kind::Integer`]: zeros and ones.
    Mask(Cow<'a, [u8]>),
    /// A list of [`Kind::Float`].
    Floats(Cow<'a, [f64]>),
    /// A list of anything.
    List(Vec<Cell<'a>>),
    /// Of [`Kind::Struct`]: a cell a member, in their order.
    Struct(Vec<Cell<'a>>),
}

/// A row: a cell a column, in their order.
pub type Row<'a> = Vec<Cell<'a>>;

impl Column {
    /// A column.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind }
    }
}

impl<'a> Cell<'a> {
    /// Text.
    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text(text.into())
    }

    /// Text, or none.
    pub fn maybe(text: Option<impl Into<Cow<'a, str>>>) -> Self {
        text.map_or(Self::Null, Self::text)
    }

    /// A number, or none.
    #[must_use]
    pub fn float(number: Option<f64>) -> Self {
        number.map_or(Self::Null, Self::Float)
    }

    /// A count.
    #[must_use]
    pub fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// A list of texts.
    pub fn texts(texts: impl IntoIterator<Item = impl Into<Cow<'a, str>>>) -> Self {
        Self::List(texts.into_iter().map(Self::text).collect())
    }

    /// Bytes that it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ids(ids) => ids.len() * 8,
            Self::Mask(mask) => mask.len() * 8,
            Self::Floats(floats) => floats.len() * 8,
            Self::List(items) | Self::Struct(items) => items.iter().map(Self::bytes).sum(),
            Self::Null | Self::Integer(_) | Self::Float(_) | Self::Bool(_) => 8,
        }
    }
}

/// A row with its columns, as a JSON object.
pub(super) struct Object<'a, 'b>(pub(super) &'static [Column], pub(super) &'b [Cell<'a>]);

impl Serialize for Object<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (column, cell) in self.0.iter().zip(self.1) {
            map.serialize_entry(column.name, &Value(column.kind, cell))?;
        }
        map.end()
    }
}

struct Value<'a, 'b>(Kind, &'b Cell<'a>);

impl Serialize for Value<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.1, self.0) {
            (Cell::Text(text), _) => serializer.serialize_str(text),
            (Cell::Integer(number), _) => serializer.serialize_i64(*number),
            (Cell::Float(number), _) => serializer.serialize_f64(*number),
            (Cell::Bool(value), _) => serializer.serialize_bool(*value),
            (Cell::Ids(ids), _) => ids.serialize(serializer),
            (Cell::Mask(mask), _) => mask.serialize(serializer),
            (Cell::Floats(floats), _) => floats.serialize(serializer),
            (Cell::List(items), Kind::List(kind)) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&Value(*kind, item))?;
                }
                list.end()
            }
            (Cell::Struct(members), Kind::Struct(columns)) => Object(columns, members).serialize(serializer),
            (Cell::Null | Cell::List(_) | Cell::Struct(_), _) => serializer.serialize_none(),
        }
    }
}

/// Writes a row as a JSON object.
///
/// # Errors
/// A writer that fails.
pub(super) fn write_json(
    writer: impl std::io::Write,
    columns: &'static [Column],
    row: &[Cell<'_>],
) -> Result<(), serde_json::Error> {
    serde_json::to_writer(writer, &Object(columns, row))
}
