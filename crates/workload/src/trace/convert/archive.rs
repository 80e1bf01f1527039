// SPDX-License-Identifier: MIT OR Apache-2.0
//! Zip archives: the chunks of a drmemtrace file, or a numpy array of an `.npz`, as one stream.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::Crc;
use flate2::bufread::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::STDIN;
use super::input::Input;
use crate::stream::WorkloadError;

/// What an archive begins with; the second is one without members.
const MAGICS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];
const READ_BYTES: usize = 1 << 18;

/// Whether `input` is an archive.
pub fn is_zip(input: &mut Input) -> Result<bool, WorkloadError> {
    let head = input.peek(MAGICS[0].len())?;
    Ok(MAGICS.contains(&head))
}

/// A member's place in the file.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    begin: u64,
    packed_bytes: u64,
    deflated: bool,
    crc: u32,
}

/// What is in the archive `path`, of those members that are read, one after another.
///
/// # Errors
/// When it is damaged, is no file, or has nothing that is read: what it has, and what to do.
pub fn open(path: &Path) -> Result<Input, WorkloadError> {
    let corrupt = |what: String| WorkloadError::Corrupt { path: path.into(), offset: 0, what };
    if path == Path::new(STDIN) || !path.is_file() {
        return Err(corrupt("a zip archive is read from its end, which a pipe does not have: name the file".into()));
    }
    let io = |source| WorkloadError::Io { path: path.into(), source };
    let file = File::open(path).map_err(io)?;
    let members = members(&file).map_err(corrupt)?;
    Ok(Input::of(path, Box::new(Members { file, members: members.into_iter(), current: None })))
}

fn members(file: &File) -> Result<Vec<Member>, String> {
    let damaged = |error: zip::result::ZipError| {
        format!("the zip archive is damaged or cut ({error}): fetch or make the capture again")
    };
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let mut names: Vec<String> = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned())).collect();
    names.sort();
    let of = |wanted: &dyn Fn(&str) -> bool| names.iter().filter(|name| wanted(name)).cloned().collect::<Vec<_>>();
    let mut chosen = of(&|name| name.starts_with("chunk."));
    if chosen.is_empty() {
        chosen = of(&|name| name.ends_with(".npy"));
        if chosen.len() > 1 {
            return Err(format!(
                "an archive of several numpy arrays ({chosen:?}): save the one with the addresses alone"
            ));
        }
    }
    if chosen.is_empty() {
        let first = names.first().map_or("nothing", String::as_str).to_owned();
        return Err(format!(
            "a zip archive without a trace (it begins with {first:?}): drmemtrace's have chunk.0000 and so on, numpy's one array"
        ));
    }
    let mut members = Vec::new();
    for name in chosen {
        let member = archive.by_name(&name).map_err(damaged)?;
        let deflated = match member.compression() {
            CompressionMethod::Stored => false,
            CompressionMethod::Deflated => true,
            other => return Err(format!("member {name:?} is packed by {other}: pack it by deflate")),
        };
        if member.encrypted() {
            return Err(format!("member {name:?} is encrypted: unpack the archive with its password"));
        }
        let begin = member.data_start().ok_or_else(|| format!("the zip archive is damaged at member {name:?}"))?;
        members.push(Member { begin, packed_bytes: member.compressed_size(), deflated, crc: member.crc32(), name });
    }
    Ok(members)
}

/// Members one after another.
struct Members {
    file: File,
    members: std::vec::IntoIter<Member>,
    current: Option<(Member, Box<dyn Read + Send>, Crc)>,
}

impl Members {
    fn begin(&mut self, member: Member) -> std::io::Result<()> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(member.begin))?;
        let packed = BufReader::with_capacity(READ_BYTES, file.take(member.packed_bytes));
        let reader: Box<dyn Read + Send> =
            if member.deflated { Box::new(DeflateDecoder::new(packed)) } else { Box::new(packed) };
        self.current = Some((member, reader, Crc::new()));
        Ok(())
    }
}

impl Read for Members {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if self.current.is_none() {
                let Some(member) = self.members.next() else { return Ok(0) };
                self.begin(member)?;
            }
            let Some((member, reader, crc)) = &mut self.current else { return Ok(0) };
            let bytes = reader.read(out)?;
            if bytes > 0 || out.is_empty() {
                crc.update(&out[..bytes]);
                return Ok(bytes);
            }
            if crc.sum() != member.crc {
                let what = format!("the checksum of member {} is wrong", member.name);
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
            }
            self.current = None;
        }
    }
}
