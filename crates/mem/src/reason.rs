// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why the system refuses something, in words for people.

use std::io::{Error, ErrorKind};

/// What the system says of an error with a file, without its number, and what to do about it where
/// that is known: `No space left on device; make room, or name another place`.
pub fn reason(error: &Error) -> String {
    let text = error.to_string();
    // How the standard library ends the text of an error that has a number.
    let said = text.split_once(" (os error ").map_or(text.as_str(), |(said, _)| said);
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "check its name",
        ErrorKind::IsADirectory => "name a file in it",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "ask for permission, or name another place",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room, or name another place",
        _ => return said.into(),
    };
    format!("{said}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_remedy_and_no_number() {
        // ENOSPC, ENOENT and EIO of Linux.
        let of = |number| reason(&Error::from_raw_os_error(number));
        assert_eq!(of(28), "No space left on device; make room, or name another place");
        assert_eq!(of(2), "No such file or directory; check its name");
        assert_eq!(of(5), "Input/output error");
        assert_eq!(reason(&Error::other("the stream broke off")), "the stream broke off");
    }
}
