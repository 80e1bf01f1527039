// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies under a kernel's physical memory: nothing more (bare metal), or a process of another
//! kernel (a VM).
//!
//! A kernel tells what lies below whenever it uses a frame itself: when it zeroes or copies a page
//! or writes a table node. A frame of a guest that the host has not mapped is then an ordinary page
//! fault in the host's kernel (an EPT violation is nothing else), so nesting works to any depth:
//! [`HostMemory`](crate::HostMemory) holds the `Below` of the host in turn.

use nestwalk_mem::{Frame, FrameRange, PageCount, Vpn};

use crate::error::OsError;
use crate::id::{FileId, ProcessId};

/// What a guest kernel asks of the kernel below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hypercall {
    /// Please back these frames by huge pages as they are touched (HugeGPT's first,
    /// `KVM_HC_HGPT_REQ_MAP`).
    PreferHuge(FrameRange),
    /// Please make huge pages of what backs these frames now (HugeGPT's second,
    /// `KVM_HC_HGPT_REQ_GATHER`).
    GatherHuge(FrameRange),
    /// Please back these frames by contiguous frames of yours (ASAP: sorted guest tables).
    MakeContiguous(FrameRange),
}

/// What comes back from a [`Hypercall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HypercallReply {
    /// There is no kernel below, or it does not know the call: behave as the stock kernel.
    Unsupported,
    /// Done, for as many of the frames as was possible.
    Done {
        /// Frames that are now as was asked (for [`Hypercall::PreferHuge`]: all).
        frames: PageCount,
        /// For [`Hypercall::MakeContiguous`], when all of the frames are contiguous below: the
        /// first one there.
        base: Option<Frame>,
    },
}

/// What lies under a kernel's physical memory.
pub trait Below {
    /// The kernel reads (or, with `store`, writes) these frames of its own.
    ///
    /// # Errors
    /// When there is no memory below to back them.
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError>;

    /// The kernel asks for something. Counted by the caller.
    fn hypercall(&mut self, call: Hypercall) -> HypercallReply;

    /// A number that changes whenever a frame that was touched may need a touch again, if there is
    /// one. It lets a kernel leave out touches of what it touched last.
    #[inline]
    fn epoch(&self) -> Option<u64> {
        None
    }

    /// The kernel fills these frames with zeroes.
    ///
    /// # Errors
    /// As [`Below::touch`].
    #[inline]
    fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        self.touch(frames, true)
    }

    /// The kernel copies one frame.
    ///
    /// # Errors
    /// As [`Below::touch`].
    fn copy(&mut self, from: Frame, to: Frame) -> Result<(), OsError> {
        self.touch(FrameRange::single(from), false)?;
        self.touch(FrameRange::single(to), true)
    }

    /// The kernel writes the page at `page` of `process`, which lies in `frame`, to its swap.
    ///
    /// # Errors
    /// As [`Below::touch`].
    fn swap_out(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        let _ = (process, page);
        self.touch(FrameRange::single(frame), false)
    }

    /// The kernel reads the page at `page` of `process` from its swap into `frame`.
    ///
    /// # Errors
    /// As [`Below::touch`].
    fn swap_in(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        let _ = (process, page);
        self.touch(FrameRange::single(frame), true)
    }

    /// The kernel reads a page of a file into `frame`.
    ///
    /// # Errors
    /// As [`Below::touch`].
    fn read_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        let _ = (file, page);
        self.touch(FrameRange::single(frame), true)
    }

    /// The kernel writes a page of a file, which lies in `frame`, back.
    ///
    /// # Errors
    /// As [`Below::touch`].
    fn write_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        let _ = (file, page);
        self.touch(FrameRange::single(frame), false)
    }
}

/// Bare metal: every frame exists, and no kernel is below.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bare;

impl Below for Bare {
    #[inline]
    fn touch(&mut self, _: FrameRange, _: bool) -> Result<(), OsError> {
        Ok(())
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        Some(0)
    }

    fn hypercall(&mut self, _: Hypercall) -> HypercallReply {
        HypercallReply::Unsupported
    }
}
