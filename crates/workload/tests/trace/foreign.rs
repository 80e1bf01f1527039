// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other tools' formats, written for tests from their definitions: the same made-up program in each
//! of them.

use std::fmt::Write as _;
use std::io::{Cursor, Write as _};

use crate::capture::{Capture, Touch};

/// An access of a program, by an instruction at `pc`. Each has two instructions without accesses
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub thread: u32,
    pub pc: u64,
    pub address: u64,
    pub bytes: u16,
    pub store: bool,
}

/// Instructions an access: two without any, and its own.
pub const INSTRUCTIONS: u64 = 3;

/// A program of `count` accesses in turns of 100 a thread: two arrays and a stack.
pub fn program(threads: u32, count: u64) -> Vec<Access> {
    let access = |i: u64| Access {
        thread: (i / 100) as u32 % threads + 100,
        pc: 0x40_1000 + i % 7 * 16,
        address: match i % 3 {
            0 => 0x5555_0000_0000 + i * 8,
            1 => 0x7fff_0000_0000 - i % 64 * 8,
            _ => 0x7f00_0000_0000 + i * 7919 % (1 << 26) / 8 * 8,
        },
        bytes: 8,
        store: i % 7 == 1,
    };
    (0..count).map(access).collect()
}

/// As the capture plugin writes it.
pub fn raw(program: &[Access]) -> Vec<u8> {
    let mut capture = Capture::default();
    for turn in program.chunk_by(|a, b| a.thread == b.thread) {
        let touch = |access: &Access| Touch {
            address: access.address,
            site: access.pc as u32,
            instructions: INSTRUCTIONS as u16,
            size_log2: access.bytes.ilog2() as u8,
            store: access.store,
        };
        // The helper counts a thread's instructions by its number: small ones only.
        capture.accesses(turn[0].thread - 100, &turn.iter().map(touch).collect::<Vec<_>>());
    }
    capture.bytes
}

/// Records of 64 bytes, or of CloudSuite's 96.
pub fn champsim(program: &[Access], cloudsuite: bool) -> Vec<u8> {
    let (bytes, operands, stores) = if cloudsuite { (96, 24, 4) } else { (64, 16, 2) };
    let mut all = Vec::new();
    for access in program {
        for before in [8u64, 4] {
            let mut record = vec![0u8; bytes];
            record[..8].copy_from_slice(&(access.pc - before).to_le_bytes());
            record[8..10].copy_from_slice(&[1, u8::from(before == 4)]);
            all.extend(record);
        }
        let mut record = vec![0u8; bytes];
        record[..8].copy_from_slice(&access.pc.to_le_bytes());
        record[10] = 26;
        let at = operands + if access.store { 0 } else { 8 * stores };
        record[at..at + 8].copy_from_slice(&access.address.to_le_bytes());
        all.extend(record);
    }
    all
}

/// Valgrind lackey's text.
pub fn lackey(program: &[Access]) -> Vec<u8> {
    let mut text = "==7== Lackey, an example Valgrind tool\n==7== \n".to_owned();
    for access in program {
        let Access { pc, address, bytes, .. } = access;
        let kind = if access.store { 'S' } else { 'L' };
        writeln!(text, "I  {:08x},4\nI  {:08x},4\nI  {pc:08x},4\n {kind} {address:08x},{bytes}", pc - 8, pc - 4)
            .unwrap();
    }
    text.into_bytes()
}

/// Pinatrace's text.
pub fn pin(program: &[Access]) -> Vec<u8> {
    let mut text = String::new();
    for Access { pc, address, store, .. } in program {
        writeln!(text, "{pc:#x}: {} {address:#x}", if *store { 'W' } else { 'R' }).unwrap();
    }
    text.push_str("#eof\n");
    text.into_bytes()
}

/// Addresses alone.
pub fn addresses(program: &[Access]) -> Vec<u8> {
    program.iter().flat_map(|access| access.address.to_le_bytes()).collect()
}

/// A numpy array of addresses.
pub fn numpy(program: &[Access]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({},), }}", program.len());
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(addresses(program));
    bytes
}

/// A record of drmemtrace.
pub fn record(kind: u16, size: u16, value: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    bytes[2..4].copy_from_slice(&size.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// A final drmemtrace file of those of the program's accesses that `has` chooses, in parts of so
/// many records. The turns of all threads are in it as time stamps.
pub fn drmemtrace(program: &[Access], version: u64, has: impl Fn(&Access) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |kind, size, value| bytes.extend(record(kind, size, value));
    put(25, 0, version);
    put(28, 12, version);
    put(28, 9, if version >= 4 { 0x240 } else { 0x40 });
    let mut thread = None;
    for (turn, accesses) in program.chunk_by(|a, b| a.thread == b.thread).enumerate() {
        for (i, access) in accesses.iter().filter(|access| has(access)).enumerate() {
            if thread != Some(access.thread) {
                put(22, 4, access.thread.into());
                put(24, 4, 77);
                thread = Some(access.thread);
            }
            if i == 0 {
                put(28, 2, 1_000_000 + turn as u64);
                put(28, 3, 1);
            }
            for pc in [access.pc - 8, access.pc - 4, access.pc] {
                if version >= 4 {
                    put(47, 4, 0x9090_9090);
                }
                put(10, 4, pc);
            }
            put(u16::from(access.store), access.bytes, access.address);
        }
    }
    put(23, 4, thread.unwrap_or(0).into());
    put(26, 0, 0);
    bytes
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A zip archive of `bytes` in chunks of at most `chunk` bytes, as drraw2trace makes it.
pub fn zip(bytes: &[u8], chunk: usize) -> Vec<u8> {
    let members: Vec<_> = bytes.chunks(chunk).enumerate().map(|(i, part)| (format!("chunk.{i:04}"), part)).collect();
    zip_of(&members)
}

/// A zip archive of `members`.
pub fn zip_of(members: &[(String, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in members {
        archive.start_file(name.as_str(), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}
