use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of a message's head.
const HEAD: usize = 12;

/// Class IN.
const INTERNET: u16 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The addresses; none where the name has none of this kind.
    Addresses(Vec<IpAddr>),
    /// There is no such name.
    NoSuchName,
    /// The server could not or would not answer: its code.
    Failed(u8),
    /// There is more than fits: ask over TCP.
    Truncated,
}

/// A question for the addresses of a name.
pub(super) fn query(id: u16, name: &str, kind: Kind) -> io::Result<Vec<u8>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no host name"));
    let mut message = Vec::with_capacity(HEAD + name.len() + 6);
    message.extend_from_slice(&id.to_be_bytes());
    // A standard question, recursion desired, one of it.
    message.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..=63).contains(length))
            .ok_or_else(bad)?;
        message.push(length);
        message.extend_from_slice(label.as_bytes());
    }
    if message.len() - HEAD > 254 {
        return Err(bad());
    }
    message.push(0);
    message.extend_from_slice(&kind.number().to_be_bytes());
    message.extend_from_slice(&INTERNET.to_be_bytes());
    Ok(message)
}

/// Reads what claims to answer `query`; `None` where it does not.
pub(super) fn answer(reply: &[u8], id: u16, query: &[u8], kind: Kind) -> Option<Answer> {
    let question = query.get(HEAD..)?;
    let flags = number(reply, 2)?;
    let is_reply = flags & 0x8000 != 0;
    let echoed = reply.get(HEAD..HEAD + question.len())?;
    if number(reply, 0)? != id
        || !is_reply
        || number(reply, 4)? != 1
        || !echoed.eq_ignore_ascii_case(question)
    {
        return None;
    }
    if flags & 0x0200 != 0 {
        return Some(Answer::Truncated);
    }
    match (flags & 0xf) as u8 {
        0 => addresses(reply, HEAD + question.len(), kind).map(Answer::Addresses),
        3 => Some(Answer::NoSuchName),
        code => Some(Answer::Failed(code)),
    }
}

/// The addresses among the answers. Aliases lead to them in the same message and need no following.
fn addresses(reply: &[u8], mut at: usize, kind: Kind) -> Option<Vec<IpAddr>> {
    let mut found = Vec::new();
    for _ in 0..number(reply, 6)? {
        at = skip_name(reply, at)?;
        let (record, class) = (number(reply, at)?, number(reply, at + 2)?);
        let length = usize::from(number(reply, at + 8)?);
        let data = reply.get(at + 10..at + 10 + length)?;
        if class == INTERNET && record == kind.number() {
            found.push(match kind {
                Kind::A => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
                Kind::Aaaa => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            });
        }
        at += 10 + length;
    }
    Some(found)
}

/// The position behind a name. Each step goes forward, so this ends.
fn skip_name(reply: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *reply.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0..=0xff => return Some(at + 2),
            _ => return None,
        }
    }
}

fn number(reply: &[u8], at: usize) -> Option<u16> {
    let bytes = reply.get(at..at + 2)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}
