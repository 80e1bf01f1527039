// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fleet over time: utilisation, memory that segments make unusable, a host's memory map.

use nestwalk_mem::{FrameRange, PageCount};

use super::cloud::Cloud;
use super::options::Options;
use super::result::{Cell, CellKind, HostMap, Sample};
use super::tally::Tally;
use crate::allocator::MAX_DS;
use crate::error::CloudError;
use crate::fleet::Fleet;
use crate::memory_map::HoleKind;
use crate::request::{Event, VmRequest};

/// Where largest ranges cost much to find (Xen, Linux), unusable memory is worked out at one in so
/// many samples.
const COSTLY: u64 = 20;

/// Takes samples at equal distances in time.
pub(super) struct Sampler {
    first_s: i64,
    span_s: i64,
    samples: u64,
    /// The next sample.
    next: u64,
    /// Times of memory maps that are still to come, the last first.
    map_times_s: Vec<i64>,
    map_host: u32,
    measure_from_s: i64,
    sizes: Sizes,
    usable: PageCount,
    vcpus: u64,
    costly: bool,
    /// Sums of `unusable_share`, and of how many.
    unusable: ([f64; MAX_DS], u64),
}

/// Sizes of the requests, to tell how likely a size is.
struct Sizes {
    /// Ascending.
    pages: Vec<u64>,
    /// How many requests are of this size or smaller.
    up_to: Vec<u64>,
}

impl Sizes {
    fn new(requests: &[VmRequest]) -> Self {
        let mut all: Vec<u64> = requests.iter().map(|request| request.memory_pages).collect();
        all.sort_unstable();
        let (mut pages, mut up_to): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for (size, count) in all.into_iter().zip(1..) {
            if pages.last() == Some(&size) {
                *up_to.last_mut().expect("as many as sizes") = count;
            } else {
                pages.push(size);
                up_to.push(count);
            }
        }
        Self { pages, up_to }
    }

    /// Requests of at most so many pages.
    fn at_most(&self, pages: u64) -> u64 {
        let after = self.pages.partition_point(|&size| size <= pages);
        after.checked_sub(1).map_or(0, |last| self.up_to[last])
    }
}

impl Sampler {
    pub fn new(cloud: &Cloud, fleet: &Fleet, requests: &[VmRequest], events: &[Event], options: &Options) -> Self {
        let (first_s, last_s) = events.first().zip(events.last()).map_or((0, 0), |(a, b)| (a.time_s, b.time_s));
        let last_arrival_s = requests.iter().map(|request| request.arrival_s).max().unwrap_or(first_s);
        let span_s = last_s.saturating_sub(first_s);
        let early_s = options.measure_from_s.unwrap_or(first_s.saturating_add(span_s / 10));
        let default = || vec![early_s, last_arrival_s];
        let mut map_times_s = options.map_times_s.clone().unwrap_or_else(default);
        map_times_s.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            first_s,
            span_s,
            samples: u64::from(options.samples),
            next: 0,
            map_times_s,
            map_host: options.map_host,
            measure_from_s: options.measure_from_s.unwrap_or(i64::MIN),
            sizes: Sizes::new(requests),
            usable: cloud.capacity(fleet),
            vcpus: cloud.vcpus(fleet),
            costly: !options.allocator.keeps_whole(),
            unusable: ([0.0; MAX_DS], 0),
        }
    }

    /// When the next sample is due.
    fn due_s(&self) -> Option<i64> {
        let part = || (i128::from(self.span_s) * i128::from(self.next + 1) / i128::from(self.samples)) as i64;
        (self.next < self.samples).then(|| self.first_s.saturating_add(part()))
    }

    /// Takes the samples that are due before an event at `now_s`: the fleet is as it was left by
    /// the event before.
    pub fn before(&mut self, now_s: i64, cloud: &Cloud, fleet: &Fleet, tally: &mut Tally) -> Result<(), CloudError> {
        while self.map_times_s.last().is_some_and(|&time_s| time_s < now_s) {
            let time_s = self.map_times_s.pop().expect("there is one");
            tally.result.maps.push(map(time_s, self.map_host, cloud, fleet)?);
        }
        while let Some(time_s) = self.due_s().filter(|&time_s| time_s < now_s) {
            self.take(time_s, cloud, tally);
            self.next += 1;
        }
        Ok(())
    }

    /// Takes the samples that are left, at the end.
    pub fn finish(&mut self, cloud: &Cloud, fleet: &Fleet, tally: &mut Tally) -> Result<(), CloudError> {
        self.before(i64::MAX, cloud, fleet, tally)?;
        let (sums, samples) = self.unusable;
        tally.result.unusable = (samples > 0).then(|| sums.map(|sum| sum / samples as f64));
        Ok(())
    }

    fn take(&mut self, time_s: i64, cloud: &Cloud, tally: &mut Tally) {
        let free: u64 = cloud.hosts.iter().map(|host| host.free_pages().0).sum();
        let free_vcpus: u64 = cloud.hosts.iter().map(|host| u64::from(host.free_vcpus())).sum();
        let (used_pages, used_vcpus) = (self.usable.0 - free, self.vcpus - free_vcpus);
        let wanted = !self.costly || self.next.is_multiple_of((self.samples / COSTLY).max(1));
        let unusable_share = wanted.then(|| self.unusable_share(cloud, free));
        if let Some(shares) = unusable_share.filter(|_| time_s >= self.measure_from_s) {
            self.unusable.0.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
            self.unusable.1 += 1;
        }
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        tally.result.series.push(Sample {
            time_s,
            running: cloud.running,
            used_pages,
            used_vcpus,
            memory_share: share(used_pages, self.usable.0),
            vcpu_share: share(used_vcpus, self.vcpus),
            unusable_share,
            placed: std::mem::take(&mut tally.placed).few(),
            unplaced: std::mem::take(&mut tally.unplaced),
            migrations: std::mem::take(&mut tally.moves),
        });
    }

    fn unusable_share(&self, cloud: &Cloud, free: u64) -> [f64; MAX_DS] {
        let mut unusable = [0_u128; MAX_DS];
        for host in &cloud.hosts {
            let pages = host.free_pages().0;
            let fitting = self.sizes.at_most(pages);
            for (sum, largest) in unusable.iter_mut().zip(host.largest_sums()) {
                let lost = fitting - self.sizes.at_most(u64::from(largest));
                *sum += u128::from(pages) * u128::from(lost);
            }
        }
        let all = u128::from(free) * self.sizes.up_to.last().map_or(0, |&all| u128::from(all));
        unusable.map(|sum| if all == 0 { 0.0 } else { sum as f64 / all as f64 })
    }
}

/// The memory of host `host` now.
fn map(time_s: i64, host: u32, cloud: &Cloud, fleet: &Fleet) -> Result<HostMap, CloudError> {
    let group = &fleet.groups[cloud.hosts[host as usize].group() as usize];
    let map = group.memory_map()?;
    let cell = |range: FrameRange, kind| Cell { start_page: range.start.0, pages: range.count.0, kind, vm: None };
    let mut cells: Vec<Cell> = map.reserved().iter().map(|&range| cell(range, CellKind::Hypervisor)).collect();
    cells.extend(map.holes().iter().map(|hole| {
        let kind = match hole.kind {
            HoleKind::Mmio => CellKind::Mmio,
            HoleKind::Firmware => CellKind::Firmware,
            HoleKind::Bad => CellKind::Bad,
        };
        Cell { start_page: hole.start_page, pages: hole.pages, kind, vm: None }
    }));
    cells.extend(cloud.hosts[host as usize].free_segments().into_iter().map(|range| cell(range, CellKind::Free)));
    for live in cloud.live.iter().filter(|live| live.host == host && !live.extents.is_empty()) {
        let of_vm = |extent: &crate::Extent| Cell { vm: Some(live.vm), ..cell(extent.range(), CellKind::Vm) };
        cells.extend(live.extents.iter().map(of_vm));
    }
    cells.sort_unstable_by_key(|cell| cell.start_page);
    cells.dedup_by(|next, last| {
        let joined = last.start_page + last.pages == next.start_page && (last.kind, last.vm) == (next.kind, next.vm);
        last.pages += if joined { next.pages } else { 0 };
        joined
    });
    Ok(HostMap { time_s, host, cells })
}
