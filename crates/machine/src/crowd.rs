// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that run beside the measured one, step by step, in simulated time.
//!
//! The [`Schedule`] says whose step comes next; a [`Member`] does it.

use nestwalk_mem::Cpu;

use crate::error::MachineError;
use crate::hardware::Detail;
use crate::member::{Joining, Member, Went, Workshop};
use crate::schedule::{Schedule, Seat};
use crate::stack::Stack;
use crate::timing::Timing;

/// See the [module's documentation](self).
pub(crate) struct Crowd {
    schedule: Schedule,
    members: Vec<Option<Member>>,
    /// The member of each seat; the measured program's seat has none.
    seats: Vec<Option<usize>>,
    timing: Timing,
}

impl Crowd {
    /// Nobody.
    pub fn new(schedule: Schedule, timing: Timing) -> Self {
        Self { schedule, members: Vec::new(), seats: Vec::new(), timing }
    }

    /// The time, in cycles.
    pub fn now(&self) -> u64 {
        self.schedule.now()
    }

    /// A seat for the measured program, whose threads are bound to processors.
    pub fn seat(&mut self, cpu: Cpu) -> Seat {
        let cpu = usize::from(cpu.0);
        self.seats.push(None);
        self.schedule.join(cpu..cpu + 1)
    }

    /// A program begins. Returns its number.
    ///
    /// # Errors
    /// When its stream cannot be opened.
    pub fn join(&mut self, stack: &Stack, joining: Joining) -> Result<usize, MachineError> {
        let place = joining.program.place();
        let cpu = usize::from(stack.machine_cpu(place, stack.cpu(place, 0)).0);
        let seat = self.schedule.join(joining.among.clone().unwrap_or(cpu..cpu + 1));
        let member = Member::new(joining, seat)?;
        if let Some(next) = member.next_cpu(stack) {
            self.schedule.bind(seat, next);
        }
        self.seats.push(Some(self.members.len()));
        self.members.push(Some(member));
        Ok(self.members.len() - 1)
    }

    /// All members, in order; `None` for those that were killed.
    pub fn members(&self) -> &[Option<Member>] {
        &self.members
    }

    /// Sends a member a signal that ends it: its next step is its last.
    pub fn terminate(&mut self, number: usize) {
        if let Some(member) = &mut self.members[number] {
            member.terminate();
        }
    }

    /// Kills a member: its memory is free.
    ///
    /// # Errors
    /// When nothing below a kernel backs a frame.
    pub fn kill(&mut self, number: usize, shop: &mut Workshop<'_>) -> Result<Option<Member>, MachineError> {
        let Some(mut member) = self.members[number].take() else { return Ok(None) };
        self.schedule.leave(member.seat);
        member.program.exit(shop.stack, member.last_cpu(shop.stack))?;
        shop.shoot_down();
        member.program.read(shop.meter, shop.stack);
        Ok(Some(member))
    }

    /// The next step of whoever's turn it is. Returns the seat's number among the members, and whether that program has
    /// ended; `None` when it is the turn of a seat without a member, or nobody is there.
    ///
    /// # Errors
    /// When a stream cannot be read on, or a kernel is out of memory.
    pub fn step(&mut self, detail: Detail, shop: &mut Workshop<'_>) -> Result<Option<(usize, Went)>, MachineError> {
        let Some((seat, cpu)) = self.schedule.next() else { return Ok(None) };
        let Some(number) = self.seats[seat.number()] else { return Ok(None) };
        let member = self.members[number].as_mut().expect("who was killed has left the schedule");
        let (went, work) = member.step(cpu, detail, &self.timing, shop)?;
        // A step that cost nothing would be chosen again and again before everybody else's.
        self.schedule.charge(seat, work.max(1));
        if let Some(next) = member.next_cpu(shop.stack) {
            self.schedule.bind(seat, next);
        }
        match went {
            Went::On => {}
            Went::Forked => self.schedule.fork(seat),
            Went::Returned => self.schedule.wake_parent(seat),
            Went::Ended => self.schedule.leave(seat),
        }
        Ok(Some((number, went)))
    }

    /// Lets the others go on until it is the turn of `seat`, which has no member and next runs on `cpu`.
    ///
    /// # Errors
    /// As [`Crowd::step`].
    pub fn until_turn(
        &mut self,
        seat: Seat,
        cpu: Cpu,
        detail: Detail,
        shop: &mut Workshop<'_>,
    ) -> Result<(), MachineError> {
        self.schedule.bind(seat, cpu.0.into());
        while self.step(detail, shop)?.is_some() {}
        Ok(())
    }

    /// Lets the daemons of a member's topmost kernel work until `now_ns`, for the member.
    ///
    /// # Errors
    /// When a kernel is out of memory.
    pub fn tick(&mut self, number: usize, now_ns: u64, shop: &mut Workshop<'_>) -> Result<(), MachineError> {
        let Some(member) = &mut self.members[number] else { return Ok(()) };
        member.program.tick_top(shop.stack, now_ns)?;
        shop.shoot_down();
        self.schedule.charge(member.seat, member.program.read(shop.meter, shop.stack));
        Ok(())
    }

    /// The step of `seat` took so many cycles.
    pub fn charge(&mut self, seat: Seat, cycles: u64) {
        self.schedule.charge(seat, cycles);
    }
}
