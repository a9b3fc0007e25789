use std::ops::Range;

/// Everything in an archive is a whole number of these.
pub(super) const BLOCK_BYTES: usize = 512;

/// A block.
pub(super) type Block = [u8; BLOCK_BYTES];

/// The largest number in a field of eleven octal digits.
pub(super) const FIELD_MAX: u64 = 0o777_7777_7777;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const PREFIX: Range<usize> = 345..500;

/// What the header of an entry says, unjudged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) kind: u8,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) mtime: Time,
    pub(super) link: Vec<u8>,
}

/// A time of modification; what is before 1970 is taken for its first second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) seconds: u64,
    pub(super) nanoseconds: u32,
}

impl Header {
    /// Reads a block; an error says what is wrong with it.
    pub(super) fn read(block: &Block) -> Result<Self, &'static str> {
        let field = |range: Range<usize>| block.get(range).unwrap_or_default();
        check_sum(block)?;
        let mut name = text(field(NAME)).to_vec();
        // Of GNU's own format the place of the prefix is another's.
        if field(MAGIC) == b"ustar\x0000" {
            let prefix = text(field(PREFIX));
            if !prefix.is_empty() {
                name = [prefix, b"/", &name].concat();
            }
        }
        let size = number(field(SIZE)).ok_or("has a length that is no number")?;
        let mode = number(field(MODE)).ok_or("has permissions that are no number")?;
        let mtime = number(field(MTIME)).ok_or("has a time that is no number")?;
        Ok(Self {
            name,
            kind: block.get(KIND).copied().unwrap_or_default(),
            mode: u32::try_from(mode.max(0) & 0o777).unwrap_or_default(),
            size: u64::try_from(size).map_err(|_| "has a length below zero")?,
            mtime: Time {
                seconds: u64::try_from(mtime).unwrap_or_default().min(FIELD_MAX),
                nanoseconds: 0,
            },
            link: text(field(LINK)).to_vec(),
        })
    }
}

/// Both sums are in use: that of unsigned bytes, and that of signed ones by old programs.
fn check_sum(block: &Block) -> Result<(), &'static str> {
    const WRONG: &str = "has a header whose sum is not right";
    let told = number(block.get(CHECKSUM).unwrap_or_default()).ok_or(WRONG)?;
    let counted = |index: usize, byte: u8| if CHECKSUM.contains(&index) { b' ' } else { byte };
    let bytes = || {
        block
            .iter()
            .enumerate()
            .map(|(index, byte)| counted(index, *byte))
    };
    let unsigned: i64 = bytes().map(i64::from).sum();
    let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
    if told == unsigned || told == signed {
        Ok(())
    } else {
        Err(WRONG)
    }
}

/// A field as far as its first zero.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits, or, with the first bit set, the number itself. An empty field is zero.
fn number(field: &[u8]) -> Option<i64> {
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // The second bit is the sign of all that follows.
            let begin = i128::from(first & 0x7f) - if first & 0x40 != 0 { 0x80 } else { 0 };
            let whole = rest.iter().try_fold(begin, |sum, byte| {
                sum.checked_mul(256)?.checked_add(i128::from(*byte))
            });
            i64::try_from(whole?).ok()
        }
        _ => {
            let digits = text(field).trim_ascii();
            if digits.is_empty() {
                return Some(0);
            }
            let is_octal = digits.iter().all(|digit| (b'0'..=b'7').contains(digit));
            let digits = std::str::from_utf8(digits).ok().filter(|_| is_octal)?;
            i64::from_str_radix(digits, 8).ok()
        }
    }
}

/// The kinds of entries that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    HardLink,
    SymbolicLink,
    Directory,
}

/// Writes the header of an entry, with what goes before it where a name or a time does not fit.
pub(super) fn write(
    out: &mut Vec<u8>,
    kind: Kind,
    name: &[u8],
    link: &[u8],
    mode: u32,
    size: u64,
    mtime: Time,
) {
    if mtime.nanoseconds > 0 {
        let record = record(
            b"mtime",
            format!("{}.{:09}", mtime.seconds, mtime.nanoseconds).as_bytes(),
        );
        put(
            out,
            b'x',
            b"././@PaxHeader",
            b"",
            0o644,
            record.len() as u64,
            Time::default(),
        );
        content(out, &record);
    }
    // Long names as GNU writes them: every program that unpacks knows these, and they are any bytes.
    for (kind, text) in [(b'L', name), (b'K', link)] {
        if text.len() > 100 {
            put(
                out,
                kind,
                b"././@LongLink",
                b"",
                0o644,
                text.len() as u64 + 1,
                Time::default(),
            );
            content(out, &[text, b"\0"].concat());
        }
    }
    let kind = match kind {
        Kind::File => b'0',
        Kind::HardLink => b'1',
        Kind::SymbolicLink => b'2',
        Kind::Directory => b'5',
    };
    put(out, kind, name, link, mode, size, mtime);
}

/// Content and the zeros that make it a whole number of blocks.
fn content(out: &mut Vec<u8>, content: &[u8]) {
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
}

/// `LENGTH NAME=VALUE`, where the length counts its own digits.
fn record(name: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = [b" ".as_slice(), name, b"=", value, b"\n"].concat();
    let mut length = rest.len() + 1;
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), &rest].concat()
}

fn put(out: &mut Vec<u8>, kind: u8, name: &[u8], link: &[u8], mode: u32, size: u64, mtime: Time) {
    let mut block = [0; BLOCK_BYTES];
    let mut set = |range: Range<usize>, bytes: &[u8]| {
        for (to, from) in block.iter_mut().skip(range.start).take(range.len()).zip(bytes) {
            *to = *from;
        }
    };
    set(NAME, name);
    set(MODE, format!("{mode:07o}\0").as_bytes());
    // Owner and group: the unpacking program's.
    set(108..116, b"0000000\0");
    set(116..124, b"0000000\0");
    set(SIZE, format!("{size:011o}\0").as_bytes());
    set(MTIME, format!("{:011o}\0", mtime.seconds).as_bytes());
    set(CHECKSUM, b"        ");
    set(KIND..KIND + 1, &[kind]);
    set(LINK, link);
    set(MAGIC, b"ustar  \0");
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    for (to, from) in block
        .iter_mut()
        .skip(CHECKSUM.start)
        .zip(format!("{sum:06o}\0 ").bytes())
    {
        *to = from;
    }
    out.extend_from_slice(&block);
}
