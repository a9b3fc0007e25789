#![expect(
    unsafe_code,
    reason = "what a program was started with in its environment can only be overwritten in place"
)]

use dressage_wire::relay::SECRET_VARIABLE;
use std::io;

unsafe extern "C" {
    /// The environment as the C library has it (environ(7)).
    static environ: *const *mut libc::c_char;
}

/// The secret by which the host is known.
pub(super) struct Secret(Vec<u8>);

impl Secret {
    /// Takes the secret out of the environment: nothing of it is left there, nor in `/proc/self/environ`. To be called before
    /// there is another thread.
    pub(super) fn take() -> io::Result<Self> {
        let mut found = None;
        // SAFETY: one thread runs, and this changes bytes of values only: every text keeps its length and its end.
        unsafe {
            let mut entry = environ;
            while !entry.is_null() && !(*entry).is_null() {
                let text = std::ffi::CStr::from_ptr(*entry).to_bytes();
                let value = text
                    .strip_prefix(SECRET_VARIABLE.as_bytes())
                    .and_then(|rest| rest.strip_prefix(b"="));
                if let Some(value) = value {
                    let (start, length) = (text.len() - value.len(), value.len());
                    found = Some(value.to_vec());
                    // A value of blanks stands in no file of the process; one of zeros would end it early.
                    std::ptr::write_bytes((*entry).add(start).cast::<u8>(), b' ', length);
                }
                entry = entry.add(1);
            }
        }
        match found {
            Some(secret) if secret.len() >= 32 => Ok(Self(secret)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the environment has no secret of at least 32 bytes for it",
            )),
        }
    }

    /// Whether `shown` is it. Takes as long whatever is wrong with it, but for its length.
    pub(super) fn is(&self, shown: &[u8]) -> bool {
        let differing = self
            .0
            .iter()
            .zip(shown)
            .fold(0, |differing, (a, b)| differing | (a ^ b));
        // Else the compiler may end the loop at the first difference.
        std::hint::black_box(differing) == 0 && self.0.len() == shown.len()
    }

    #[cfg(test)]
    pub(super) fn of(text: &str) -> Self {
        Self(text.into())
    }
}
