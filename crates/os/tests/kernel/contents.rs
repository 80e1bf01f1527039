// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies in memory: a token a frame, so that a test can see whether a page holds what the
//! program wrote there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nestwalk_mem::{Frame, FrameRange, Vpn};
use nestwalk_os::{Below, FileId, HostMemory, Hypercall, HypercallReply, Kernel, OsError, ProcessId};

/// The contents of a page: 0 is all zeroes.
pub type Token = u64;

/// What a frame holds before the first write to it.
const GARBAGE: Token = u64::MAX;

/// Pages in swap.
#[derive(Default)]
pub struct Swap(BTreeMap<(ProcessId, Vpn), Token>);

impl Swap {
    /// What a page held when it went there.
    ///
    /// # Panics
    /// When it did not.
    pub fn read(&self, process: ProcessId, page: Vpn) -> Token {
        *self.0.get(&(process, page)).unwrap_or_else(|| panic!("{page:?} of {process:?} is not in swap"))
    }

    pub fn write(&mut self, process: ProcessId, page: Vpn, token: Token) {
        self.0.insert((process, page), token);
    }

    /// The page holds something else from now on, or is mapped no more.
    pub fn remove(&mut self, process: ProcessId, page: Vpn) -> Option<Token> {
        self.0.remove(&(process, page))
    }

    fn pages_of(&self, process: ProcessId) -> Vec<(Vpn, Token)> {
        let pages = self.0.range((process, Vpn(0))..=(process, Vpn(u64::MAX)));
        pages.map(|(&(_, page), &token)| (page, token)).collect()
    }

    /// `child` has the same pages as `parent`.
    pub fn fork(&mut self, parent: ProcessId, child: ProcessId) {
        self.pages_of(parent).into_iter().for_each(|(page, token)| self.write(child, page, token));
    }

    /// The process is gone. Its number may come again.
    pub fn forget(&mut self, process: ProcessId) {
        for (page, _) in self.pages_of(process) {
            self.remove(process, page);
        }
    }
}

/// What files hold, as far as it was written back.
#[derive(Clone, Default)]
pub struct Disk(Rc<RefCell<BTreeMap<(FileId, u64), Token>>>);

impl Disk {
    /// What a page of a file holds at first: no zeroes, and each something else.
    pub fn fresh(file: u32, page: u64) -> Token {
        1 << 50 | u64::from(file) << 32 | page
    }

    pub fn read(&self, file: FileId, page: u64) -> Token {
        self.0.borrow().get(&(file, page)).copied().unwrap_or_else(|| Self::fresh(file.0, page))
    }

    fn write(&self, file: FileId, page: u64, token: Token) {
        self.0.borrow_mut().insert((file, page), token);
    }
}

/// Bare metal that remembers what was written.
#[derive(Clone, Default)]
pub struct Metal {
    frames: Rc<RefCell<BTreeMap<Frame, Token>>>,
    pub swap: Rc<RefCell<Swap>>,
    pub disk: Disk,
}

impl Metal {
    pub fn read(&self, frame: Frame) -> Token {
        self.frames.borrow().get(&frame).copied().unwrap_or(GARBAGE)
    }

    pub fn write(&self, frame: Frame, token: Token) {
        self.frames.borrow_mut().insert(frame, token);
    }
}

impl Below for Metal {
    fn touch(&mut self, _: FrameRange, _: bool) -> Result<(), OsError> {
        Ok(())
    }

    fn hypercall(&mut self, _: Hypercall) -> HypercallReply {
        HypercallReply::Unsupported
    }

    fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        frames.iter().for_each(|frame| self.write(frame, 0));
        Ok(())
    }

    fn copy(&mut self, from: Frame, to: Frame) -> Result<(), OsError> {
        self.write(to, self.read(from));
        Ok(())
    }

    fn swap_out(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        let token = self.read(frame);
        self.swap.borrow_mut().write(process, page, token);
        Ok(())
    }

    fn swap_in(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        let token = self.swap.borrow().read(process, page);
        self.write(frame, token);
        Ok(())
    }

    fn read_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        self.write(frame, self.disk.read(file, page));
        Ok(())
    }

    fn write_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        self.disk.write(file, page, self.read(frame));
        Ok(())
    }
}

/// A VM's memory over a host on [`Metal`], in which the contents of the guest's frames can be
/// followed.
pub struct VmMemory<'a> {
    pub host: &'a mut Kernel,
    pub vm: ProcessId,
    pub base: Vpn,
    pub metal: Metal,
    /// The guest's own swap.
    pub swap: Rc<RefCell<Swap>>,
    /// The guest's own files.
    pub disk: Disk,
}

impl VmMemory<'_> {
    fn real(&mut self, touch: impl FnOnce(&mut HostMemory<'_>) -> Result<(), OsError>) -> Result<(), OsError> {
        let Self { host, vm, base, metal, .. } = self;
        let mut memory = HostMemory { host, process: *vm, base: *base, cpu: Default::default(), below: metal };
        touch(&mut memory)
    }

    /// What the guest finds in its frame, wherever the host keeps it.
    pub fn read(&self, frame: Frame) -> Token {
        let page = self.base + frame.0;
        match self.host.table(self.vm).unwrap().leaf(page) {
            None => 0,
            Some(leaf) if leaf.entry.is_present() => self.metal.read(leaf.frame_of(page)),
            Some(_) => self.metal.swap.borrow().read(self.vm, page),
        }
    }

    /// The guest stores to its frame.
    pub fn write(&mut self, frame: Frame, token: Token) -> Result<(), OsError> {
        self.touch(FrameRange::single(frame), true)?;
        let page = self.base + frame.0;
        self.metal.write(self.host.table(self.vm)?.translate(page).expect("it was touched"), token);
        Ok(())
    }
}

impl Below for VmMemory<'_> {
    fn touch(&mut self, frames: FrameRange, store: bool) -> Result<(), OsError> {
        self.real(|memory| memory.touch(frames, store))
    }

    fn hypercall(&mut self, call: Hypercall) -> HypercallReply {
        let Self { host, vm, base, metal, .. } = self;
        host.serve_hypercall(*vm, *base, call, metal)
    }

    fn zero(&mut self, frames: FrameRange) -> Result<(), OsError> {
        frames.iter().try_for_each(|frame| self.write(frame, 0))
    }

    fn copy(&mut self, from: Frame, to: Frame) -> Result<(), OsError> {
        self.touch(FrameRange::single(from), false)?;
        let token = self.read(from);
        self.write(to, token)
    }

    fn swap_out(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        self.touch(FrameRange::single(frame), false)?;
        let token = self.read(frame);
        self.swap.borrow_mut().write(process, page, token);
        Ok(())
    }

    fn swap_in(&mut self, process: ProcessId, page: Vpn, frame: Frame) -> Result<(), OsError> {
        let token = self.swap.borrow().read(process, page);
        self.write(frame, token)
    }

    fn read_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        self.write(frame, self.disk.read(file, page))
    }

    fn write_file(&mut self, file: FileId, page: u64, frame: Frame) -> Result<(), OsError> {
        self.touch(FrameRange::single(frame), false)?;
        self.disk.write(file, page, self.read(frame));
        Ok(())
    }
}

#[test]
fn a_fork_has_what_its_parent_has_in_swap_until_it_exits() {
    let mut swap = Swap::default();
    let (other, parent, child) = (ProcessId(1), ProcessId(2), ProcessId(3));
    swap.write(other, Vpn(u64::MAX), 5);
    swap.write(parent, Vpn(0), 6);
    swap.write(parent, Vpn(9), 7);
    swap.fork(parent, child);
    swap.forget(parent);
    assert_eq!((swap.read(child, Vpn(0)), swap.read(child, Vpn(9)), swap.read(other, Vpn(u64::MAX))), (6, 7, 5));
    assert_eq!((swap.remove(parent, Vpn(0)), swap.remove(parent, Vpn(9))), (None, None));
}
