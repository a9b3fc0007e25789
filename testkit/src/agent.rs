//! The scripted agent: a tiny coding agent that does what its model says, or misbehaves on purpose.
