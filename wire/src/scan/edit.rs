use bytes::BytesMut;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;

/// Cuts and replacements in a text, in order, none overlapping.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    list: SmallVec<[Edit; 8]>,
}

#[derive(Clone, Debug)]
struct Edit {
    span: Range<usize>,
    with: Cow<'static, [u8]>,
}

impl Edits {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Puts something in the place of a span, which must come after all those before it. Of an empty span: before it.
    pub fn replace(&mut self, span: Range<usize>, with: impl Into<Cow<'static, [u8]>>) {
        self.list.push(Edit {
            span,
            with: with.into(),
        });
    }

    /// Takes a span out.
    pub fn cut(&mut self, span: Range<usize>) {
        self.replace(span, &b""[..]);
    }

    /// How long the text is then.
    #[must_use]
    pub fn length_of(&self, text: &[u8]) -> usize {
        let change = |length: usize, edit: &Edit| (length + edit.with.len()).saturating_sub(edit.span.len());
        self.list.iter().fold(text.len(), change)
    }

    /// Appends the text as it is then.
    pub fn write(&self, text: &[u8], out: &mut BytesMut) {
        let mut from = 0;
        for Edit { span, with } in &self.list {
            out.extend_from_slice(text.get(from..span.start).unwrap_or_default());
            out.extend_from_slice(with);
            from = span.end;
        }
        out.extend_from_slice(text.get(from..).unwrap_or_default());
    }
}

/// Cuts members out of an object, with the commas that go with them. Each member is told to it in order.
#[derive(Clone, Debug, Default)]
pub struct Cutter {
    kept: bool,
    previous_end: usize,
    open: Option<usize>,
}

impl Cutter {
    /// The member stays. To be called before any edit inside it. `start` is that of its name's quote, `end` that of
    /// its value.
    pub fn keep(&mut self, start: usize, end: usize, edits: &mut Edits) {
        if let Some(open) = self.open.take() {
            edits.cut(open..start);
        }
        self.kept = true;
        self.previous_end = end;
    }

    /// The member goes.
    pub fn cut(&mut self, start: usize, end: usize, edits: &mut Edits) {
        if self.kept {
            edits.cut(self.previous_end..end);
        } else {
            self.open.get_or_insert(start);
        }
        self.previous_end = end;
    }

    /// There are no more members.
    pub fn close(&mut self, edits: &mut Edits) {
        if let Some(open) = self.open.take() {
            edits.cut(open..self.previous_end);
        }
    }

    /// Whether a member has stayed.
    #[must_use]
    pub fn kept(&self) -> bool {
        self.kept
    }
}
