// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moving pages, frames and all, from one address to another, without a privilege.
//!
//! `UFFDIO_MOVE` (Linux 6.8) moves the frame and touches no VMA. `mremap` moves it as well, but
//! leaves a VMA for each page that is not where it was, so that `vm.max_map_count` bounds it.
//! Neither copies: the frame that was behind one address is then behind the other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::ProbeError;
use super::mapping::{Mapping, PAGE};

/// How pages are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// `UFFDIO_MOVE`.
    Userfault,
    /// `mremap`.
    Remap,
}

impl Means {
    /// The system call.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Userfault => "userfaultfd, UFFDIO_MOVE",
            Self::Remap => "mremap",
        }
    }
}

/// `struct uffdio_api` of `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_move`.
#[repr(C)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: i32 = 1;
/// A page that is missing is SIGBUS, and not a wait for an answer that never comes.
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MOVE: u64 = 1 << 16;
const REGISTER_MODE_MISSING: u64 = 1;

/// `_IOWR(0xAA, number, T)`.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | 0xaa << 8 | number
}

/// Attempts at a move that the kernel asks to repeat (`EAGAIN`), or for which the page was busy for
/// a moment.
const ATTEMPTS: u32 = 1000;

pub(super) struct Mover {
    /// `None`: by `mremap`.
    userfault: Option<OwnedFd>,
}

impl Mover {
    /// The best mover that there is here, between the pages of `mappings`, which are all populated
    /// or never touched.
    pub(super) fn new(mappings: &[&Mapping], means: Option<Means>) -> Self {
        let userfault = match means {
            Some(Means::Remap) => None,
            _ => userfault(mappings).ok(),
        };
        Self { userfault }
    }

    pub(super) fn means(&self) -> Means {
        if self.userfault.is_some() { Means::Userfault } else { Means::Remap }
    }

    /// Moves the page at `from` to `to`, where there is none.
    ///
    /// # Safety
    /// Both are pages of the mappings that this mover was made with, and nothing refers to what is
    /// in them.
    pub(super) unsafe fn relocate(&self, from: u64, to: u64) -> Result<(), ProbeError> {
        let done = match &self.userfault {
            Some(file) => move_page(file, from, to),
            // SAFETY: as the caller promises.
            None => unsafe { remap(from, to) },
        };
        done.map_err(|source| {
            let remedy = if self.userfault.is_none() && source.raw_os_error() == Some(libc::ENOMEM) {
                "; raise vm.max_map_count, or give a smaller --footprint-max"
            } else {
                ""
            };
            ProbeError::Move { means: self.means().name(), source, remedy }
        })
    }
}

fn userfault(mappings: &[&Mapping]) -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers; its result is a new file descriptor or -1.
    let file = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(file as i32) };
    let mut api = Api { api: UFFD_API, features: FEATURE_SIGBUS | FEATURE_MOVE, ioctls: 0 };
    ioctl(&file, 0x3f, &mut api)?;
    for mapping in mappings {
        let (start, len) = (mapping.base() as u64, mapping.bytes() as u64);
        ioctl(&file, 0x00, &mut Register { start, len, mode: REGISTER_MODE_MISSING, ioctls: 0 })?;
    }
    Ok(file)
}

/// An ioctl of userfaultfd whose argument is a `T`.
fn ioctl<T>(file: &OwnedFd, number: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the request names the size of `T`, which is laid out as the kernel's and lives until
    // the call returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request::<T>(number) as _, argument) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn move_page(file: &OwnedFd, from: u64, to: u64) -> io::Result<()> {
    let mut attempt = 0;
    loop {
        let mut order = Move { dst: to, src: from, len: PAGE as u64, mode: 0, moved: 0 };
        let Err(error) = ioctl(file, 0x05, &mut order) else { return Ok(()) };
        let again = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
        attempt += 1;
        if !again || attempt == ATTEMPTS {
            return Err(error);
        }
        std::thread::yield_now();
    }
}

/// # Safety
/// As [`Mover::relocate`].
unsafe fn remap(from: u64, to: u64) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both pages belong to mappings of the caller, to which nothing refers.
    let moved = unsafe { libc::mremap(from as *mut _, PAGE, PAGE, flags, to as *mut libc::c_void) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}
