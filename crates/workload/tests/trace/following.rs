// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulations that follow a program: they get what a trace of it would have given them.

use nestwalk_mem::Access;
use nestwalk_workload::trace::capture::{Answer, Begin};
use nestwalk_workload::trace::live::{Follower, LiveOptions, broadcast};
use nestwalk_workload::trace::{ConvertOptions, PlayOptions, TraceWorkload};
use nestwalk_workload::{Batch, MemoryEvent, Phase, Step, ThreadId, Workload, WorkloadError};

use crate::capture::{Capture, Place, Touch, mmap, munmap};

fn options(begin: Begin) -> LiveOptions {
    LiveOptions { program: "p".into(), footprint_bytes: 1 << 20, threads: 4, begin, end_mark: None }
}

#[derive(Clone, PartialEq, Debug)]
enum Seen {
    Access(ThreadId, Access),
    Touch(ThreadId, u64, bool),
    Event(MemoryEvent),
    Phase(Phase),
}

/// All that `workload` says, and the instructions that it counts.
fn all(mut workload: impl Workload) -> (Vec<Seen>, u64) {
    let (mut batch, mut seen, mut instructions) = (Batch::default(), Vec::new(), 0);
    loop {
        match workload.next(&mut batch).unwrap() {
            Step::Accesses => seen.extend(batch.accesses.iter().map(|&access| Seen::Access(batch.thread, access))),
            Step::Touches => {
                seen.extend(batch.touches.iter().map(|&(page, store)| Seen::Touch(batch.thread, page.0, store)));
            }
            Step::Event(event) => seen.push(Seen::Event(event)),
            Step::Phase(phase) => seen.push(Seen::Phase(phase)),
            Step::End => return (seen, instructions),
        }
        instructions += batch.instructions;
    }
}

/// What each of `count` followers of `bytes` sees.
fn followed(bytes: &[u8], begin: Begin, count: usize) -> Result<Vec<(Vec<Seen>, u64)>, WorkloadError> {
    let place = Place::new();
    std::fs::write(place.path("stream"), bytes).unwrap();
    let (stream, followers) = broadcast(&options(begin), count);
    std::thread::scope(|scope| {
        let following: Vec<_> = followers.into_iter().map(|one: Follower| scope.spawn(|| all(one))).collect();
        stream.read(&place.path("stream"), &mut |_| Answer::GoOn)?;
        Ok(following.into_iter().map(|one| one.join().unwrap()).collect())
    })
}

/// Two threads, more accesses than fit into a batch, memory that goes and comes, and a `read`.
fn program() -> Capture {
    let mut capture = Capture::default();
    capture.events(0, &[mmap(0x10_0000, 0x10_0000)]);
    let many = |stride: u64| (0..40_000).map(move |i| Touch::store(0x10_0000 + i * stride % 0x10_0000));
    capture.accesses(0, &many(64).collect::<Vec<_>>());
    capture.accesses(1, &many(4096).collect::<Vec<_>>());
    capture.events(1, &[munmap(0x10_0000, 0x8_0000), mmap(0x10_0000, 0x8_0000)]);
    // The kernel copies to ten pages of it, and to two that are known.
    capture.events(1, &[(12, 1, 0x17_6000, 0xc000, 0, 0)]);
    capture.accesses(1, &many(512).collect::<Vec<_>>());
    capture
}

fn without_phases(seen: Vec<Seen>) -> Vec<Seen> {
    seen.into_iter().filter(|one| !matches!(one, Seen::Phase(_))).collect()
}

#[test]
fn each_follower_sees_what_a_trace_would_have_played() {
    let capture = program();
    let place = Place::new();
    place.convert(&capture.bytes, &ConvertOptions::default()).unwrap();
    let (played, instructions) = all(TraceWorkload::new(place.trace(), PlayOptions::default()).unwrap());
    for (seen, counted) in followed(&capture.bytes, Begin::Auto, 3).unwrap() {
        assert_eq!(seen[0], Seen::Phase(Phase::Warm));
        assert_eq!(counted, instructions);
        assert!(without_phases(seen) == without_phases(played.clone()));
    }
}

#[test]
fn before_it_begins_there_are_first_touches_only() {
    let (seen, _) = followed(&program().bytes, Begin::Access(80_000), 1).unwrap().remove(0);
    assert_eq!(seen[0], Seen::Phase(Phase::Populate));
    let begin = seen.iter().position(|one| *one == Seen::Phase(Phase::Warm)).unwrap();
    let touches = seen[..begin].iter().filter(|one| matches!(one, Seen::Touch(..))).count();
    // The stream's own stretches are not cut: the second thread's, which ends where it is to begin,
    // is populated, too. Of the pages that the kernel copied to, ten are new.
    assert_eq!(
        (touches, seen[begin + 1..].iter().filter(|one| matches!(one, Seen::Access(..))).count()),
        (256 + 10, 40_000)
    );
    assert!(!seen[..begin].iter().any(|one| matches!(one, Seen::Access(..))));
    let error = followed(&program().bytes, Begin::Mark(7), 1).unwrap_err().to_string();
    assert!(error.contains("before its simulation was to begin"), "{error}");
}

#[test]
fn the_warm_up_ends_when_it_is_told() {
    let place = Place::new();
    std::fs::write(place.path("stream"), program().bytes).unwrap();
    let (stream, mut followers) = broadcast(&options(Begin::Auto), 1);
    let mut follower = followers.remove(0);
    std::thread::scope(|scope| {
        // Its only follower leaves when all of it may have been sent, or not.
        scope.spawn(|| stream.read(&place.path("stream"), &mut |_| Answer::GoOn).is_ok());
        let mut batch = Batch::default();
        let mut steps = Vec::new();
        for _ in 0..4 {
            steps.push(follower.next(&mut batch).unwrap());
        }
        assert_eq!(steps[0], Step::Phase(Phase::Warm));
        assert_eq!(steps[2..], [Step::Accesses, Step::Accesses]);
        follower.end_warm_up();
        assert_eq!(follower.next(&mut batch).unwrap(), Step::Phase(Phase::Measure));
        follower.end_warm_up();
        assert_eq!(follower.next(&mut batch).unwrap(), Step::Accesses);
        assert_eq!(batch.accesses.len(), 40_000 - 2 * Batch::ACCESSES_MAX);
        drop(follower);
    });
}

#[test]
fn a_damaged_stream_and_one_that_nobody_follows_are_errors() {
    let mut bytes = program().bytes;
    bytes[80 + 32] ^= 0xff;
    let length = bytes.len();
    bytes[length / 2..length / 2 + 64].fill(0xff);
    assert!(matches!(followed(&bytes, Begin::Auto, 2), Err(WorkloadError::Corrupt { .. })));

    let place = Place::new();
    std::fs::write(place.path("stream"), program().bytes).unwrap();
    let (stream, followers) = broadcast(&options(Begin::Auto), 2);
    drop(followers);
    let error = stream.read(&place.path("stream"), &mut |_| Answer::GoOn).unwrap_err();
    assert!(matches!(error, WorkloadError::Io { .. }), "{error}");
    let (stream, followers) = broadcast(&options(Begin::Auto), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| followers.into_iter().map(all).count());
        let error = stream.read(&place.path("stream"), &mut |_| Answer::Abandon).unwrap_err();
        assert!(matches!(error, WorkloadError::Io { .. }), "{error}");
    });
}
