// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a finished trace goes. Only a regular file is replaced: a link keeps pointing where it
//! points, and a FIFO, a character device or standard output is written through once the trace is
//! complete.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The name that means standard output.
const STDOUT: &str = "-";

/// See the [module's documentation](self).
#[derive(Debug)]
pub(super) enum Destination {
    /// A regular file, be it there yet or not. With the mode that it has.
    Replaced(PathBuf, Option<Permissions>),
    /// A FIFO or a character device.
    WrittenThrough(PathBuf),
    /// Standard output.
    Stdout,
}

impl Destination {
    /// What `path` names.
    ///
    /// # Errors
    /// When it is a directory, a block device, a socket, or a link to nowhere that can be written.
    pub fn of(path: &Path) -> Result<Self> {
        if path == Path::new(STDOUT) {
            return Ok(Self::Stdout);
        }
        if path.file_name().is_none() {
            return Err(ErrorKind::IsADirectory.into());
        }
        let found = match path.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A link to a file that is yet to be made.
                let target = std::fs::read_link(path).map(|target| path.parent().unwrap_or(Path::new("")).join(target));
                return Ok(Self::Replaced(target.unwrap_or_else(|_| path.to_owned()), None));
            }
            Err(error) => return Err(error),
        };
        let kind = found.file_type();
        if kind.is_file() {
            return Ok(Self::Replaced(path.canonicalize()?, Some(found.permissions())));
        }
        if kind.is_fifo() || kind.is_char_device() {
            return Ok(Self::WrittenThrough(path.to_owned()));
        }
        if kind.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        Err(Error::new(ErrorKind::InvalidInput, "is neither a file nor a FIFO; name a file"))
    }

    /// A file to write the trace to until it is complete.
    ///
    /// # Errors
    /// When none can be made where it has to be.
    pub fn temporary(&self) -> Result<NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".nestwalk-").suffix(".part");
        match self {
            // The usual permissions, less what the umask takes: a finished trace is no one's
            // secret.
            Self::Replaced(path, _) => {
                let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                builder.permissions(Permissions::from_mode(0o666)).tempfile_in(directory)
            }
            Self::WrittenThrough(_) | Self::Stdout => builder.tempfile(),
        }
    }

    /// Puts the complete trace `file` where it belongs.
    ///
    /// # Errors
    /// When that cannot be done. Nothing is left of `file` then.
    pub fn take(self, mut file: NamedTempFile) -> Result<()> {
        match self {
            Self::Replaced(path, mode) => {
                if let Some(mode) = mode {
                    file.as_file().set_permissions(mode)?;
                }
                file.persist(path).map_err(|error| error.error)?;
                Ok(())
            }
            Self::WrittenThrough(path) => copy(file.as_file_mut(), OpenOptions::new().write(true).open(path)?),
            Self::Stdout => copy(file.as_file_mut(), std::io::stdout().lock()),
        }
    }
}

fn copy(file: &mut File, mut to: impl Write) -> Result<()> {
    file.rewind()?;
    std::io::copy(file, &mut to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &[u8]) -> Result<()> {
        let destination = Destination::of(path)?;
        let mut file = destination.temporary()?;
        file.write_all(text)?;
        destination.take(file)
    }

    #[test]
    fn a_link_stays_a_link_and_a_mode_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let dangling = folder.path().join("dangling");
        symlink("made", &dangling).unwrap();
        write(&dangling, b"more").unwrap();
        assert!(dangling.is_symlink());
        assert_eq!(std::fs::read(folder.path().join("made")).unwrap(), b"more");
    }

    #[test]
    fn a_fifo_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reading = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(reading).unwrap().read_to_string(&mut text).map(|_| text)
        });
        write(&path, b"through").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), "through");
        assert!(path.metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn devices_stay_and_what_cannot_be_written_is_refused() {
        write(Path::new("/dev/null"), b"away").unwrap();
        assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Destination::of(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(Destination::of(&socket).unwrap_err().to_string().contains("neither a file nor a FIFO"));
    }

    #[test]
    fn the_longest_name_that_a_file_can_have_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        write(&path, b"long").unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"long");
    }
}
