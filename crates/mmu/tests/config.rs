// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machine files: their format, and the errors for bad ones.

mod common;

use common::machine;
use nestwalk_mem::Hpa;
use nestwalk_mmu::{Core, Llc, MmuConfig, MmuError};

/// The error of the test machine with `from` replaced by `to`.
fn error_with(from: &str, to: &str) -> String {
    let text = include_str!("machine.toml");
    assert!(text.contains(from), "{from:?}");
    match toml::from_str::<MmuConfig>(&text.replacen(from, to, 1)) {
        Ok(config) => config.validate().unwrap_err().to_string(),
        Err(error) => error.message().to_string(),
    }
}

#[test]
fn a_machine_file_survives_the_round_trip() {
    let config = machine();
    config.validate().unwrap();
    let text = toml::to_string(&config).unwrap();
    assert!(text.contains("size = \"32 KiB\"") && text.contains("policy = \"non-inclusive\""), "{text}");
    assert_eq!(toml::from_str::<MmuConfig>(&text).unwrap(), config);
}

#[test]
fn sizes_may_be_fractions_of_a_unit_and_llcs_need_no_power_of_two() {
    let text = include_str!("machine.toml").replace("20MiB", "24.75MiB").replace("ways = 20", "ways = 11");
    let config: MmuConfig = toml::from_str(&text).unwrap();
    assert_eq!(config.llc.bytes, 24 * (1 << 20) + 3 * (1 << 18));
    assert_eq!(Llc::new(&config).unwrap().set_count(), 36864);
    let text = include_str!("machine.toml").replace("20MiB", "36MiB").replace("ways = 20", "ways = 12");
    assert_eq!(Llc::new(&toml::from_str(&text).unwrap()).unwrap().set_count(), 49152);
}

#[test]
fn bad_machines_get_one_clear_error() {
    let cases = [
        ("ways = 20", "ways = 0", "[llc]: ways = 0"),
        ("ways = 20", "ways = 65", "[llc]: ways = 65; at most 64"),
        ("\"20MiB\"", "\"20.0001MiB\"", "\"20.0001MiB\" is no size"),
        ("\"20MiB\"", "1000000", "999680 or 1000960 would be"),
        ("\"20MiB\"", "0", "[llc]: it has no entries"),
        ("\"20MiB\"", "\"20MB\"", "\"20MB\" is no size"),
        ("\"20MiB\"", "\"-1MiB\"", "\"-1MiB\" is no size"),
        ("\"20MiB\"", "\"99999999999TiB\"", "is no size"),
        ("entries = 64", "entries = 65", "[l1_tlb]: 65 entries is no multiple of 8 ways"),
        ("sizes = [\"4KiB\"]", "sizes = []", "no array holds \"4KiB\""),
        ("sizes = [\"4KiB\"]", "sizes = [\"4KiB\", \"2MiB\"]", "more than one array holds 2MiB"),
        ("sizes = [\"4KiB\"]", "sizes = [\"4K\"]", "\"4K\" is no page size"),
        ("pl3 = { entries = 4, ways = 4 }", "pl3 = { entries = 4, ways = 3 }", "[guest_pwc.pl3]: 4 entries"),
        ("pl4", "pl6", "unknown field `pl6`"),
        ("policy = \"non-inclusive\"", "policy = \"lazy\"", "unknown variant `lazy`"),
        ("memory_latency_cycles = 191", "", "missing field `memory_latency_cycles`"),
    ];
    for (from, to, expected) in cases {
        let error = error_with(from, to);
        assert!(error.contains(expected), "{to}: {error}");
        assert!(!error.contains('\n'), "{error:?} is one line");
    }
}

#[test]
fn memory_beyond_what_tags_tell_apart_is_refused() {
    let config = machine();
    assert_eq!(config.validate_memory(Hpa(1 << 43)), Ok(()));
    let error = config.validate_memory(Hpa(1 << 45)).unwrap_err();
    assert!(matches!(error, MmuError::MemoryTooLarge { sets: 64, .. }), "{error}");
}

#[test]
fn a_bad_machine_builds_neither_core_nor_cache() {
    let mut config = machine();
    config.l2.ways = 0;
    assert_eq!(Core::new(&config).unwrap_err(), MmuError::ZeroWays { place: "l2".into() });
    assert!(Llc::new(&config).is_err());
}

#[test]
fn a_look_up_that_no_walk_could_wait_for_is_refused() {
    let mut config = machine();
    config.host_pwc.latency_cycles = 170;
    config.validate().unwrap();
    config.host_pwc.latency_cycles = 171;
    assert_eq!(
        config.validate().unwrap_err().to_string(),
        "[host_pwc]: latency_cycles = 171; at most 170 are supported"
    );
}
