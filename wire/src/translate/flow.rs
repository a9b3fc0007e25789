use super::chunk::{Chunk, Fragment};
use super::json::{readable_length, sound_body};
use super::reply::{Block, Kind, Reply};
use crate::scan::{ScanError, decode_string};
use bytes::BytesMut;

/// Writes a reply in a dialect as it comes. What is told of a reply has been taken into it before.
pub(crate) trait Writer: Send {
    /// It begins.
    fn begin(&mut self, reply: &Reply, out: &mut BytesMut);

    /// The block at a position begins. Of a call the name and id are known.
    fn open(&mut self, reply: &Reply, at: usize, out: &mut BytesMut);

    /// The block goes on with this: what stands between the quotes of a string.
    fn delta(&mut self, reply: &Reply, at: usize, piece: &[u8], out: &mut BytesMut);

    /// The block is whole.
    fn close(&mut self, reply: &Reply, at: usize, out: &mut BytesMut);

    /// The reply is whole.
    fn end(&mut self, reply: &Reply, out: &mut BytesMut);

    /// The stream ends here by a failure, which is to be told with a status. It may not have begun.
    fn fail(&mut self, reply: &Reply, status: u16, message: &str, out: &mut BytesMut);
}

/// A reply on its way: blocks are opened, continued and closed as the events of a chat completion have it.
///
/// Only calls can be open beside another block: servers send them one after the other, but may also send pieces of
/// several in turn.
pub(crate) struct Flow {
    reply: Reply,
    writer: Box<dyn Writer>,
    /// What is known of each block beside the reply.
    states: Vec<State>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Before,
    Under,
    Over,
    /// The agent was told that there will be no more.
    Failed,
}

/// How far a block is.
#[derive(Debug, Default)]
struct State {
    /// Position among the calls, as the endpoint counts.
    index: Option<u64>,
    opened: bool,
    closed: bool,
    /// Bytes that can be read only with those to come.
    tail: Vec<u8>,
}

impl Flow {
    pub(crate) fn new(writer: Box<dyn Writer>) -> Self {
        Self {
            reply: Reply::default(),
            writer,
            states: Vec::new(),
            stage: Stage::Before,
        }
    }

    /// The reply so far.
    pub(crate) fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Whether anything has been said.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage != Stage::Before
    }

    /// Whether everything has been said.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over | Stage::Failed)
    }

    /// Whether the agent was told of a failure.
    pub(crate) fn has_failed(&self) -> bool {
        self.stage == Stage::Failed
    }

    /// The prompt is known to be so long.
    pub(crate) fn prompt_is(&mut self, tokens: Option<u64>) {
        self.reply.prompt_tokens = self.reply.prompt_tokens.or(tokens);
    }

    /// Takes the data of the next event.
    pub(crate) fn take(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), ScanError> {
        if self.is_over() {
            return Ok(());
        }
        let chunk = Chunk::read(data)?;
        if let Some(error) = chunk.error {
            let message = crate::dialect::chat::error_message(error);
            self.fail(status_of(error), &message, out);
            return Ok(());
        }
        if self.stage == Stage::Before {
            // What names the reply names its parts, and does not change once the agent was told.
            self.reply.take_head(&chunk);
            if chunk.has_choice {
                self.stage = Stage::Under;
                self.writer.begin(&self.reply, out);
            }
        }
        self.piece(Kind::Reasoning, &chunk.reasoning, out);
        self.piece(Kind::Text, &chunk.content, out);
        self.piece(Kind::Refusal, &chunk.refusal, out);
        for call in &chunk.calls {
            self.call(call, out);
        }
        let finishes = chunk.finish_reason.is_some();
        self.reply.take_end(&chunk);
        if finishes {
            self.close_all(out);
        }
        Ok(())
    }

    /// Says all that a reply says which is there whole.
    pub(crate) fn replay(reply: Reply, mut writer: Box<dyn Writer>, out: &mut BytesMut) {
        writer.begin(&reply, out);
        for (at, block) in reply.blocks.iter().enumerate() {
            writer.open(&reply, at, out);
            if !block.text.is_empty() {
                writer.delta(&reply, at, &block.text, out);
            }
            writer.close(&reply, at, out);
        }
        writer.end(&reply, out);
    }

    /// The reply is whole.
    pub(crate) fn end(&mut self, out: &mut BytesMut) {
        if self.stage == Stage::Under {
            self.close_all(out);
            self.writer.end(&self.reply, out);
        }
        if self.stage != Stage::Failed {
            self.stage = Stage::Over;
        }
    }

    /// The reply will not be whole.
    pub(crate) fn fail(&mut self, status: u16, message: &str, out: &mut BytesMut) {
        if !self.is_over() {
            self.writer.fail(&self.reply, status, message, out);
            self.stage = Stage::Failed;
        }
    }

    /// A piece of what is said.
    fn piece(&mut self, kind: Kind, piece: &[u8], out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let goes_on = self
            .reply
            .blocks
            .last()
            .zip(self.states.last())
            .is_some_and(|(block, state)| block.kind == kind && !state.closed);
        if !goes_on {
            self.close_before(out);
            self.reply.blocks.push(Block::new(kind));
            self.states.push(State::default());
        }
        self.append(self.states.len().saturating_sub(1), piece, out);
    }

    /// A piece of a call, which belongs to the call of its index; without an index, to the call of its id, or to the last.
    fn call(&mut self, piece: &Fragment<'_>, out: &mut BytesMut) {
        let calls = || {
            self.reply
                .blocks
                .iter()
                .zip(&self.states)
                .enumerate()
                .filter(|(_, (block, _))| block.kind == Kind::Call)
        };
        let known = match piece.index {
            Some(index) => calls().find(|(_, (_, state))| state.index == Some(index)),
            None if piece.id.is_empty() => calls().next_back(),
            None => {
                let id = decode_string(piece.id);
                calls().find(|(_, (block, _))| block.id == id)
            }
        };
        let known = known.map(|(at, _)| at);
        let at = known.unwrap_or_else(|| {
            self.close_before(out);
            let id = self.reply.call_id(piece.id);
            self.reply.blocks.push(Block {
                id,
                ..Block::new(Kind::Call)
            });
            self.states.push(State {
                index: piece.index,
                ..State::default()
            });
            self.states.len().saturating_sub(1)
        });
        if let (Some(block), Some(state)) = (self.reply.blocks.get_mut(at), self.states.get(at))
            && block.name.is_empty()
            && !state.opened
        {
            block.name = decode_string(piece.name).into_owned();
        }
        self.append(at, &piece.arguments, out);
    }

    /// Adds to a block, and says of it what can be said.
    fn append(&mut self, at: usize, piece: &[u8], out: &mut BytesMut) {
        let (Some(block), Some(state)) = (self.reply.blocks.get_mut(at), self.states.get_mut(at)) else {
            return;
        };
        if state.closed {
            return;
        }
        let joined;
        let piece = if state.tail.is_empty() {
            piece
        } else {
            joined = [std::mem::take(&mut state.tail).as_slice(), piece].concat();
            &joined
        };
        let (readable, tail) = piece
            .split_at_checked(readable_length(piece))
            .unwrap_or((piece, &[]));
        state.tail = tail.to_vec();
        let said = sound_body(readable);
        block.text.extend_from_slice(&said);
        let nameless = block.kind == Kind::Call && block.name.is_empty();
        if !state.opened {
            if nameless {
                return;
            }
            self.open(at, out);
        } else if !said.is_empty() {
            self.writer.delta(&self.reply, at, &said, out);
        }
    }

    /// Begins a block, with what there is of it.
    fn open(&mut self, at: usize, out: &mut BytesMut) {
        let Some(state) = self.states.get_mut(at).filter(|state| !state.opened) else {
            return;
        };
        state.opened = true;
        self.writer.open(&self.reply, at, out);
        let all = self.reply.blocks.get(at).map(|block| block.text.clone());
        if let Some(all) = all.filter(|all| !all.is_empty()) {
            self.writer.delta(&self.reply, at, &all, out);
        }
    }

    /// Closes what comes to its end by another block's beginning: all but calls whose arguments are not all there. Blocks
    /// begin in order, so that a call whose name has not come begins without one.
    fn close_before(&mut self, out: &mut BytesMut) {
        for at in 0..self.states.len() {
            self.open(at, out);
            let open = self.states.get(at).is_some_and(|state| !state.closed);
            let ends = |block: &Block| block.kind != Kind::Call || block.is_whole_call();
            if open && self.reply.blocks.get(at).is_some_and(ends) {
                self.close(at, out);
            }
        }
    }

    fn close_all(&mut self, out: &mut BytesMut) {
        for at in 0..self.states.len() {
            self.close(at, out);
        }
    }

    fn close(&mut self, at: usize, out: &mut BytesMut) {
        let Some(state) = self.states.get_mut(at).filter(|state| !state.closed) else {
            return;
        };
        state.closed = true;
        let rest = std::mem::take(&mut state.tail);
        let opened = std::mem::replace(&mut state.opened, true);
        let rest = sound_body(&rest);
        let mut said = rest.to_vec();
        if let Some(block) = self.reply.blocks.get_mut(at) {
            block.text.extend_from_slice(&rest);
            if !opened {
                said.clone_from(&block.text);
            }
        }
        if !opened {
            self.writer.open(&self.reply, at, out);
        }
        if !said.is_empty() {
            self.writer.delta(&self.reply, at, &said, out);
        }
        self.writer.close(&self.reply, at, out);
    }
}

/// The status that an error names, where it is one.
fn status_of(error: &[u8]) -> u16 {
    let error = serde_json::from_slice::<serde_json::Value>(error).unwrap_or_default();
    let code = error.get("code").and_then(serde_json::Value::as_u64);
    code.and_then(|code| u16::try_from(code).ok())
        .filter(|code| (400..600).contains(code))
        .unwrap_or(500)
}
