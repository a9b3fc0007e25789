use crate::error::Failure;
use crate::exit::Exit;
use secrecy::{ExposeSecret, SecretString};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file in the data directory.
const NAME: &str = "control-token";

/// Random bytes in a token.
const BYTES: usize = 32;

/// The token of a server whose sandboxes can reach it: made at the start, in a file that other users cannot read, gone at
/// the end. Who reads it may ask, as with an API key. An agent that runs as the server's own user can read it too; where
/// the server is root's, sandboxes run as other users.
#[derive(Debug)]
pub struct ControlToken {
    path: PathBuf,
    token: SecretString,
}

impl ControlToken {
    /// Makes one, in the place of what a dead server left.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn make(data_dir: &Path) -> Result<Self, Failure> {
        let path = data_dir.join(NAME);
        Self::write(&path).map_err(|error| {
            Failure::new(
                Exit::MachineLacks,
                format!("the control token `{}` could not be written", path.display()),
            )
            .cause(error.to_string())
        })
    }

    fn write(path: &Path) -> io::Result<Self> {
        let mut random = [0; BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        let token = random.iter().fold(String::new(), |mut text, byte| {
            // A string takes everything.
            _ = write!(text, "{byte:02x}");
            text
        });
        // A file of its own, so that whoever opened the earlier one does not read this; in place at once and whole.
        let made = path.with_file_name(format!("{NAME}.{}", std::process::id()));
        _ = std::fs::remove_file(&made);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&made)?;
        writeln!(file, "{token}")?;
        std::fs::rename(&made, path)?;
        Ok(Self {
            path: path.to_owned(),
            token: SecretString::from(token),
        })
    }

    /// Where it can be read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token.
    #[must_use]
    pub fn secret(&self) -> SecretString {
        self.token.clone()
    }
}

impl Drop for ControlToken {
    fn drop(&mut self) {
        // Another server on the same data directory may have put its own there.
        let is_ours =
            std::fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.token.expose_secret());
        if is_ours {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_the_owners_alone_and_goes_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let first = ControlToken::make(folder.path()).unwrap();
        let text = std::fs::read_to_string(first.path()).unwrap();
        assert_eq!(text.trim().len(), 2 * BYTES);
        assert_eq!(
            first.path().metadata().unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = ControlToken::make(folder.path()).unwrap();
        assert_ne!(std::fs::read_to_string(second.path()).unwrap(), text);
        drop(first);
        assert!(second.path().exists(), "the second server's is left alone");
        drop(second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
