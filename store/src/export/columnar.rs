use dressage_wire::export::{Cell, Column, Kind, Shape};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError as Error;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

/// Bytes of rows that are held until they are written together.
const ROW_GROUP_BYTES: usize = 32 << 20;

/// Level of zstd.
const ZSTD_LEVEL: i32 = 3;

/// A Parquet file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParquetError {
    /// It is no Parquet, or damaged.
    #[error("it cannot be read as Parquet")]
    Unreadable(#[source] Error),
    /// A row of it.
    #[error("row {row} cannot be read")]
    Row {
        /// Which, from 1.
        row: u64,
        /// Why not.
        source: Error,
    },
}

/// Writes rows of a shape as Parquet.
pub(super) struct ParquetRows<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: &'static [Column],
    leaves: Vec<Leaf>,
    held_bytes: usize,
}

/// The values of a column that is no list and no structure, with where they belong: how much of the path to each is
/// there, and at which list of the path it begins a new item (Parquet's definition and repetition levels).
struct Leaf {
    values: Values,
    present: Vec<i16>,
    repeats: Vec<i16>,
}

enum Values {
    Texts(Vec<ByteArray>),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
}

impl<W: Write + Send> ParquetRows<W> {
    /// A file of a shape.
    ///
    /// # Errors
    /// A writer that fails.
    pub(super) fn new(writer: W, shape: Shape) -> io::Result<Self> {
        let columns = shape.columns();
        let fields = columns
            .iter()
            .map(|column| field(column.name, column.kind, Repetition::OPTIONAL));
        let schema = Type::group_type_builder("row")
            .with_fields(fields.collect::<Result<_, _>>().map_err(io::Error::other)?)
            .build()
            .map_err(io::Error::other)?;
        let metadata = [
            ("dressage.schema", shape.schema().to_owned()),
            ("dressage.schema_version", shape.schema_version().to_string()),
        ];
        let level = ZstdLevel::try_new(ZSTD_LEVEL).map_err(io::Error::other)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_created_by(concat!("dressage ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(
                metadata
                    .map(|(key, value)| KeyValue::new(key.to_owned(), value))
                    .into(),
            ))
            .build();
        Ok(Self {
            file: SerializedFileWriter::new(writer, Arc::new(schema), Arc::new(properties))
                .map_err(io::Error::other)?,
            columns,
            leaves: columns.iter().flat_map(|column| leaves(column.kind)).collect(),
            held_bytes: 0,
        })
    }

    /// Takes a row in.
    ///
    /// # Errors
    /// A writer that fails.
    pub(super) fn write(&mut self, row: &[Cell<'_>]) -> io::Result<()> {
        put_members(self.columns, row, &mut self.leaves, Level::ROW);
        self.held_bytes += row.iter().map(Cell::bytes).sum::<usize>();
        if self.held_bytes >= ROW_GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends the file, and gives the writer back.
    ///
    /// # Errors
    /// A writer that fails.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        self.file.into_inner().map_err(into_io)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held_bytes == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group().map_err(into_io)?;
        for leaf in &mut self.leaves {
            let Some(mut column) = group.next_column().map_err(into_io)? else {
                break;
            };
            let levels = (Some(leaf.present.as_slice()), Some(leaf.repeats.as_slice()));
            match &leaf.values {
                Values::Texts(values) => column
                    .typed::<ByteArrayType>()
                    .write_batch(values, levels.0, levels.1),
                Values::Integers(values) => column
                    .typed::<Int64Type>()
                    .write_batch(values, levels.0, levels.1),
                Values::Floats(values) => column
                    .typed::<DoubleType>()
                    .write_batch(values, levels.0, levels.1),
                Values::Bools(values) => column.typed::<BoolType>().write_batch(values, levels.0, levels.1),
            }
            .and_then(|_| column.close())
            .map_err(into_io)?;
            leaf.clear();
        }
        group.close().map_err(into_io)?;
        self.held_bytes = 0;
        Ok(())
    }
}

/// What the writer below said, where it is that which failed.
fn into_io(error: Error) -> io::Error {
    match error {
        Error::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}

fn field(name: &str, kind: Kind, repetition: Repetition) -> Result<TypePtr, Error> {
    let primitive = |physical, logical| {
        Type::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
    };
    let group = |fields, logical, name: &str, repetition| {
        Type::group_type_builder(name)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .with_fields(fields)
            .build()
    };
    let made = match kind {
        Kind::Text => primitive(Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Integer => primitive(Physical::INT64, None),
        Kind::Float => primitive(Physical::DOUBLE, None),
        Kind::Bool => primitive(Physical::BOOLEAN, None),
        Kind::List(item) => {
            let element = field("element", *item, Repetition::REQUIRED)?;
            let list = group(vec![element], None, "list", Repetition::REPEATED)?;
            group(vec![Arc::new(list)], Some(LogicalType::List), name, repetition)
        }
        Kind::Struct(columns) => {
            let members = columns
                .iter()
                .map(|column| field(column.name, column.kind, Repetition::OPTIONAL));
            group(members.collect::<Result<_, _>>()?, None, name, repetition)
        }
    };
    made.map(Arc::new)
}

/// The columns of Parquet that a kind takes, in order.
fn leaves(kind: Kind) -> Vec<Leaf> {
    let values = match kind {
        Kind::List(item) => return leaves(*item),
        Kind::Struct(columns) => return columns.iter().flat_map(|column| leaves(column.kind)).collect(),
        Kind::Text => Values::Texts(Vec::new()),
        Kind::Integer => Values::Integers(Vec::new()),
        Kind::Float => Values::Floats(Vec::new()),
        Kind::Bool => Values::Bools(Vec::new()),
    };
    vec![Leaf {
        values,
        present: Vec::new(),
        repeats: Vec::new(),
    }]
}

fn leaf_count(kind: Kind) -> usize {
    match kind {
        Kind::List(item) => leaf_count(*item),
        Kind::Struct(columns) => columns.iter().map(|column| leaf_count(column.kind)).sum(),
        _ => 1,
    }
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Level {
    /// How much of the path to it is there.
    present: i16,
    /// At which list of the path it begins a new item; 0 for a new row.
    repeats: i16,
    /// How many lists it is in.
    lists: i16,
}

impl Level {
    const ROW: Self = Self {
        present: 0,
        repeats: 0,
        lists: 0,
    };

    /// One more of the path is there.
    fn inside(self) -> Self {
        Self {
            present: self.present + 1,
            ..self
        }
    }

    /// The item of a list at this level.
    fn item(self, position: usize) -> Self {
        Self {
            present: self.present + 1,
            repeats: if position == 0 {
                self.repeats
            } else {
                self.lists + 1
            },
            lists: self.lists + 1,
        }
    }
}

/// Puts the members of a structure, or the columns of a row, where they belong.
fn put_members(columns: &[Column], cells: &[Cell<'_>], mut leaves: &mut [Leaf], level: Level) {
    for (column, cell) in columns.iter().zip(cells) {
        let (of_column, rest) = leaves.split_at_mut(leaf_count(column.kind).min(leaves.len()));
        match cell {
            Cell::Null => of_column.iter_mut().for_each(|leaf| leaf.nothing(level)),
            cell => put(column.kind, cell, of_column, level.inside()),
        }
        leaves = rest;
    }
}

/// Puts a value where it belongs.
fn put(kind: Kind, cell: &Cell<'_>, leaves: &mut [Leaf], level: Level) {
    if let Kind::Struct(columns) = kind
        && let Cell::Struct(members) = cell
    {
        return put_members(columns, members, leaves, level);
    }
    let (Kind::List(item), length) = (kind, length_of(cell)) else {
        if let [leaf] = leaves {
            leaf.value(cell, level);
        }
        return;
    };
    if length == 0 {
        return leaves.iter_mut().for_each(|leaf| leaf.nothing(level));
    }
    match (cell, leaves) {
        (Cell::List(items), leaves) => {
            for (position, cell) in items.iter().enumerate() {
                put(*item, cell, leaves, level.item(position));
            }
        }
        (cell, [leaf]) => leaf.numbers(cell, level),
        _ => {}
    }
}

fn length_of(cell: &Cell<'_>) -> usize {
    match cell {
        Cell::List(items) => items.len(),
        Cell::Ids(ids) => ids.len(),
        Cell::Mask(mask) => mask.len(),
        Cell::Floats(floats) => floats.len(),
        _ => 0,
    }
}

impl Leaf {
    /// Nothing, further down than `level`.
    fn nothing(&mut self, level: Level) {
        self.present.push(level.present);
        self.repeats.push(level.repeats);
    }

    fn value(&mut self, cell: &Cell<'_>, level: Level) {
        self.nothing(level);
        match (&mut self.values, cell) {
            (Values::Texts(values), Cell::Text(text)) => values.push(text.as_bytes().to_vec().into()),
            (Values::Integers(values), Cell::Integer(number)) => values.push(*number),
            (Values::Floats(values), Cell::Float(number)) => values.push(*number),
            (Values::Bools(values), Cell::Bool(value)) => values.push(*value),
            // A cell of another kind than its column's; nothing makes one. A value must stand there.
            (Values::Texts(values), _) => values.push(ByteArray::default()),
            (Values::Integers(values), _) => values.push(0),
            (Values::Floats(values), _) => values.push(f64::NAN),
            (Values::Bools(values), _) => values.push(false),
        }
    }

    /// A list of numbers that has some.
    fn numbers(&mut self, cell: &Cell<'_>, level: Level) {
        match (&mut self.values, cell) {
            (Values::Integers(values), Cell::Ids(ids)) => values.extend(ids.iter().map(|id| i64::from(*id))),
            (Values::Integers(values), Cell::Mask(mask)) => {
                values.extend(mask.iter().map(|one| i64::from(*one)))
            }
            (Values::Floats(values), Cell::Floats(floats)) => values.extend(floats.iter()),
            _ => return self.nothing(level),
        }
        let length = length_of(cell);
        let item = level.item(1);
        self.present.resize(self.present.len() + length, item.present);
        self.repeats.push(level.repeats);
        self.repeats.resize(self.repeats.len() + length - 1, item.repeats);
    }

    fn clear(&mut self) {
        match &mut self.values {
            Values::Texts(values) => values.clear(),
            Values::Integers(values) => values.clear(),
            Values::Floats(values) => values.clear(),
            Values::Bools(values) => values.clear(),
        }
        self.present.clear();
        self.repeats.clear();
    }
}

/// Reads the rows of a Parquet file as the lines of JSON that they would be; of a native one, the documents. `each` is
/// given the number of the row, from 1, and the line; it is asked for more as long as it says so.
///
/// # Errors
/// A file that is no Parquet, or damaged.
pub fn read_parquet(file: File, mut each: impl FnMut(u64, &[u8]) -> bool) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(file).map_err(ParquetError::Unreadable)?;
    let rows = reader.get_row_iter(None).map_err(ParquetError::Unreadable)?;
    for (number, row) in (1..).zip(rows) {
        let row = row.map_err(|source| ParquetError::Row { row: number, source })?;
        let mut object = object(&row);
        let line = match object.get_mut(dressage_wire::export::native::DOCUMENT_COLUMN) {
            Some(Value::String(document)) => std::mem::take(document).into_bytes(),
            _ => Value::Object(object).to_string().into_bytes(),
        };
        if !each(number, &line) {
            break;
        }
    }
    Ok(())
}

fn object(row: &Row) -> Map<String, Value> {
    let members = row
        .get_column_iter()
        .map(|(name, field)| (name.clone(), value(field)));
    members.collect()
}

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(value) => Value::Bool(*value),
        Field::Byte(number) => Value::from(*number),
        Field::Short(number) => Value::from(*number),
        Field::Int(number) => Value::from(*number),
        Field::Long(number) => Value::from(*number),
        Field::UByte(number) => Value::from(*number),
        Field::UShort(number) => Value::from(*number),
        Field::UInt(number) => Value::from(*number),
        Field::ULong(number) => Value::from(*number),
        Field::Float(number) => Value::from(*number),
        Field::Double(number) => Value::from(*number),
        Field::Str(text) => Value::from(text.as_str()),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        _ => Value::Null,
    }
}
