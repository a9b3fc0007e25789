use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Why a file is no program for this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotNative {
    /// Nothing is there.
    Missing,
    /// Something else is.
    Because(String),
}

impl fmt::Display for NotNative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it is not there"),
            Self::Because(reason) => f.write_str(reason),
        }
    }
}

/// `e_machine` of the ELF header and the architecture's name.
const MACHINES: [(u16, &str); 4] = [(62, "x86_64"), (183, "aarch64"), (243, "riscv64"), (3, "x86")];

/// Looks at a file's header: an ELF program of this machine's architecture, executable. Runs nothing.
pub(super) fn check_native(path: &Path) -> Result<(), NotNative> {
    let because = |reason: &dyn fmt::Display| NotNative::Because(reason.to_string());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(NotNative::Missing),
        Err(error) => return Err(because(&error)),
    };
    let metadata = file.metadata().map_err(|error| because(&error))?;
    if !metadata.is_file() {
        return Err(because(&"it is not a regular file"));
    }
    let mut header = [0u8; 20];
    file.read_exact(&mut header)
        .map_err(|_| because(&"it is not an ELF program"))?;
    let [0x7f, b'E', b'L', b'F', _, order, .., machine_0, machine_1] = header else {
        return Err(because(&"it is not an ELF program"));
    };
    let machine = match order {
        2 => u16::from_be_bytes([machine_0, machine_1]),
        _ => u16::from_le_bytes([machine_0, machine_1]),
    };
    let here = std::env::consts::ARCH;
    match MACHINES.iter().find(|(number, _)| *number == machine) {
        Some((_, name)) if *name == here => {}
        Some((_, name)) => {
            return Err(because(&format_args!(
                "it is for {name}, and this machine is {here}"
            )));
        }
        None => {
            return Err(because(&format_args!(
                "it is for machine {machine}, and this machine is {here}"
            )));
        }
    }
    use std::os::unix::fs::PermissionsExt as _;
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(because(&"it is not executable"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_missing_cut_foreign_or_other_architectures_program_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        assert_eq!(check_native(&path), Err(NotNative::Missing));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let write = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            check_native(&path).map_err(|error| error.to_string())
        };
        assert_eq!(write(&own[..100], 0o755), Ok(()));
        assert_eq!(write(&own[..100], 0o644), Err("it is not executable".into()));
        assert_eq!(write(&own[..10], 0o755), Err("it is not an ELF program".into()));
        assert_eq!(
            write(b"#!/bin/sh\nexit 0 # a script", 0o755),
            Err("it is not an ELF program".into())
        );
        let mut other = own[..100].to_vec();
        other[18] = if std::env::consts::ARCH == "aarch64" {
            62
        } else {
            183
        };
        let error = write(&other, 0o755).unwrap_err();
        assert!(
            error.starts_with("it is for ") && error.contains("this machine is"),
            "{error}"
        );
        assert_eq!(
            check_native(folder.path()),
            Err(NotNative::Because("it is not a regular file".into()))
        );
    }
}
