// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays of VM traces for Python. Requests come in and outcomes go out as flat columns of
//! little-endian numbers: a trace has millions of VMs.

use nestwalk_cloud::bench;
use nestwalk_cloud::replay::{Outcome, VmOutcome};
use nestwalk_cloud::{Departure, Fleet, Options, VmRequest, replay};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::listener::Listener;
use crate::{json, refuse};

/// Stands for "no deletion is known" in the column of earliest deletions.
const UNKNOWN: i64 = i64::MAX;

/// The columns of a trace, a value for each request: arrival (i64, s), earliest and latest deletion
/// (i64, s; [`UNKNOWN`] where none is known), virtual CPUs (u32), memory (u64, pages of 4 KiB).
type Columns<'a> = (&'a [u8], &'a [u8], &'a [u8], &'a [u8], &'a [u8]);

/// What a replay gives to Python: JSON; and for each request its outcome (u8: 0 refused, 1
/// unplaced, 2 placed), its host (u32) and its segments (u32).
type Replayed<'py> = (String, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Replays the trace `columns` over `fleet` (JSON) as `options` (JSON) says. `progress` is told of
/// events.
#[pyfunction]
#[pyo3(signature = (columns, fleet, options, progress=None))]
pub(crate) fn cloud_replay<'py>(
    py: Python<'py>,
    columns: Columns<'py>,
    fleet: &str,
    options: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Replayed<'py>> {
    let fleet: Fleet = parse(fleet, "fleet")?;
    let options: Options = parse(options, "options")?;
    let requests = requests(columns)?;
    let (text, vms) = py.detach(|| {
        let mut listener = Listener::new(progress);
        let outcome = replay(&fleet, &requests, &options, &mut |now| {
            listener.hear(now.events, Some(now.events_total)).is_continue()
        });
        let done = listener.conclude(outcome)?;
        Ok::<_, PyErr>((json(&done)?, done.vms))
    })?;
    let column = |bytes: Vec<u8>| PyBytes::new(py, &bytes);
    let hosts = vms.iter().flat_map(|vm| vm.host.to_le_bytes()).collect();
    let segments = vms.iter().flat_map(|vm| vm.segments.to_le_bytes()).collect();
    Ok((text, column(vms.iter().map(outcome).collect()), column(hosts), column(segments)))
}

/// A benchmark's figures in the form of the simulator's own; what only that measures is null.
#[derive(Serialize)]
pub(crate) struct Benchmarked {
    name: &'static str,
    value: f64,
    unit: &'static str,
    clock_ghz: Option<f64>,
    cycles: Option<f64>,
    width: Option<f64>,
    memory_bytes: Option<u64>,
}

impl Benchmarked {
    pub(crate) fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value, unit, clock_ghz: None, cycles: None, width: None, memory_bytes: None }
    }
}

/// Above so many events a benchmark of replays runs once, however often it is to be repeated.
const EVENTS_REPEATED_MAX: u64 = 1_000_000;

/// The best of `repetitions` runs of the benchmark `name` of replays, as JSON; `None` if it is none
/// of theirs.
pub(crate) fn benchmark(name: &str, repetitions: u32) -> Option<PyResult<String>> {
    bench::names().contains(&name).then(|| {
        let mut best = bench::run(name).map_err(refuse)?;
        for _ in 1..if best.events > EVENTS_REPEATED_MAX { 1 } else { repetitions } {
            let again = bench::run(name).map_err(refuse)?;
            best = if again.value > best.value { again } else { best };
        }
        let (name, value, unit) = (best.name, best.value, best.unit);
        json(&Benchmarked::new(name, value, unit))
    })
}

fn outcome(vm: &VmOutcome) -> u8 {
    match vm.outcome {
        Outcome::Refused => 0,
        Outcome::Unplaced => 1,
        Outcome::Placed => 2,
    }
}

fn parse<T: DeserializeOwned>(text: &str, what: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| refuse(format!("{what}: {error}")))
}

/// The requests of a trace.
fn requests((arrival, lo, hi, vcpus, memory): Columns<'_>) -> PyResult<Vec<VmRequest>> {
    let (arrival, lo, hi) =
        (column(arrival, i64::from_le_bytes), column(lo, i64::from_le_bytes), column(hi, i64::from_le_bytes));
    let (vcpus, memory) = (column(vcpus, u32::from_le_bytes), column(memory, u64::from_le_bytes));
    let count = arrival.len();
    if [lo.len(), hi.len(), vcpus.len(), memory.len()].iter().any(|&length| length != count) {
        return Err(refuse("the columns of a trace differ in length"));
    }
    let request = |((((arrival_s, lo_s), hi_s), vcpus), memory_pages)| {
        let departure = match (lo_s, hi_s) {
            (UNKNOWN, _) => Departure::Unknown,
            (lo_s, hi_s) if lo_s == hi_s => Departure::At(lo_s),
            (lo_s, hi_s) => Departure::Between { lo_s, hi_s },
        };
        VmRequest { arrival_s, departure, vcpus, memory_pages }
    };
    Ok(arrival.zip(lo).zip(hi).zip(vcpus).zip(memory).map(request).collect())
}

/// A column's values; bytes left over at its end are none.
fn column<'a, const BYTES: usize, T: 'a>(
    bytes: &'a [u8],
    read: impl Fn([u8; BYTES]) -> T + 'a,
) -> impl ExactSizeIterator<Item = T> + 'a {
    bytes.as_chunks::<BYTES>().0.iter().map(move |&chunk| read(chunk))
}
