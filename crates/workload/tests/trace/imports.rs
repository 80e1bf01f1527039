// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of other tools: the same program in each format gives the same trace, as far as the
//! format has it; what is damaged or unknown is refused with its place and a remedy.

use nestwalk_workload::trace::convert::Known;
use nestwalk_workload::trace::{ConvertOptions, ConvertReport, check, info};
use proptest::prelude::*;

use crate::capture::{Item, Place, convert_file, items};
use crate::foreign::{self, Access, INSTRUCTIONS, program, record};

/// Thread, address, store of each access of the trace.
fn accesses(place: &Place) -> Vec<(u16, u64, bool)> {
    let access = |item: Item| match item {
        Item::Access(thread, access) => Some((thread.0, access.gva().0, access.is_store())),
        _ => None,
    };
    items(&place.trace()).into_iter().filter_map(access).collect()
}

fn wanted(program: &[Access]) -> Vec<(u16, u64, bool)> {
    program.iter().map(|access| ((access.thread - 100) as u16, access.address, access.store)).collect()
}

fn import(place: &Place, bytes: &[u8]) -> ConvertReport {
    place.convert(bytes, &ConvertOptions::default()).unwrap()
}

/// The error of a conversion, as a user sees it; nothing is left of it.
fn complaint(bytes: &[u8], from: Option<Known>) -> String {
    let place = Place::new();
    let error = place.convert(bytes, &ConvertOptions { from, ..ConvertOptions::default() }).unwrap_err().to_string();
    assert!(!place.path("trace.nwt").exists() && !error.contains('\n'), "{error}");
    error
}

#[test]
fn every_format_gives_the_program_that_was_written() {
    let one = program(1, 20_000);
    let place = Place::new();
    let instructions = one.len() as u64 * INSTRUCTIONS;
    for (name, bytes, instructions, stores) in [
        ("champsim", foreign::champsim(&one, false), instructions, true),
        ("champsim", foreign::champsim(&one, true), instructions, true),
        ("drmemtrace", foreign::drmemtrace(&one, 7, |_| true), instructions, true),
        ("lackey", foreign::lackey(&one), instructions, true),
        ("pin", foreign::pin(&one), one.len() as u64, true),
        ("addresses", foreign::addresses(&one), one.len() as u64, false),
        ("numpy", foreign::numpy(&one), one.len() as u64, false),
        ("raw", foreign::raw(&one), instructions, true),
    ] {
        let report = import(&place, &bytes);
        assert_eq!(report.metadata.source_format, name);
        let mut expected = wanted(&one);
        if !stores {
            expected.iter_mut().for_each(|access| access.2 = false);
        }
        assert!(accesses(&place) == expected, "{name}: other accesses");
        assert_eq!(report.metadata.instructions, instructions, "{name}");
        assert_eq!(report.metadata.warning.is_some(), name != "raw", "{name}");
        check(&place.path("trace.nwt")).unwrap();
    }
}

#[test]
fn packed_files_are_what_they_are_unpacked() {
    let one = program(1, 5_000);
    let place = Place::new();
    for bytes in [foreign::champsim(&one, false), foreign::drmemtrace(&one, 6, |_| true), foreign::lackey(&one)] {
        let halves = bytes.split_at(bytes.len() / 2);
        let twice = |pack: &dyn Fn(&[u8]) -> Vec<u8>| [pack(halves.0), pack(halves.1)].concat();
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        for packed in [twice(&foreign::gzip), twice(&foreign::xz), twice(&foreign::lz4), twice(&zstd)] {
            import(&place, &packed);
            assert!(accesses(&place) == wanted(&one));
        }
    }
}

#[test]
fn all_versions_of_drmemtrace_are_read_and_later_ones_refused() {
    let two = program(2, 3_000);
    let place = Place::new();
    for version in 1..=7 {
        for bytes in [
            foreign::drmemtrace(&two, version, |_| true),
            foreign::zip(&foreign::drmemtrace(&two, version, |_| true), 9_600),
        ] {
            let report = import(&place, &bytes);
            assert!(accesses(&place) == wanted(&two), "version {version}");
            assert_eq!((report.metadata.threads, report.metadata.instructions), (2, 3_000 * INSTRUCTIONS));
        }
    }
    for version in [0, 8] {
        let says = complaint(&foreign::drmemtrace(&two, version, |_| true), None);
        assert!(says.contains(&format!("drmemtrace version {version}; versions 1 to 7 are read")), "{says}");
    }
}

#[test]
fn a_folder_of_threads_or_cores_is_put_into_the_order_of_time() {
    let three = program(3, 3_000);
    for inner in ["", "trace"] {
        for shards in [2u32, 3] {
            let place = Place::new();
            let folder = place.path("app.dir").join(inner);
            std::fs::create_dir_all(&folder).unwrap();
            for shard in 0..shards {
                // Three files: one a thread. Two: cores, between which the threads' turns are
                // shared out.
                let bytes = foreign::drmemtrace(&three, 7, |access| access.thread % shards == shard);
                std::fs::write(folder.join(format!("shard.{shard}.zip")), foreign::zip(&bytes, 24_000)).unwrap();
            }
            std::fs::write(folder.join("funclist.log"), "0,1,malloc\n").unwrap();
            let schedule = [("0".to_owned(), &[0u8; 40][..])];
            std::fs::write(folder.join("cpu_schedule.bin.zip"), foreign::zip_of(&schedule)).unwrap();
            convert_file(&place.path("app.dir"), &place.path("trace.nwt"), &ConvertOptions::default()).unwrap();
            let by_address =
                |all: Vec<(u16, u64, bool)>| all.into_iter().map(|access| (access.1, access.2)).collect::<Vec<_>>();
            assert!(by_address(accesses(&place)) == by_address(wanted(&three)), "{inner:?} {shards}");
            assert_eq!(info(&place.path("trace.nwt")).unwrap().threads, 3);
        }
    }
}

#[test]
fn folders_without_a_trace_and_two_processes_are_refused() {
    let place = Place::new();
    let folder = place.path("app.dir");
    std::fs::create_dir_all(folder.join("raw")).unwrap();
    let error = || convert_file(&folder, &place.path("trace.nwt"), &ConvertOptions::default()).unwrap_err().to_string();
    assert!(error().contains("drraw2trace"), "{}", error());
    std::fs::remove_dir(folder.join("raw")).unwrap();
    assert!(error().contains("no file of this folder"), "{}", error());
    let one = foreign::drmemtrace(&program(1, 300), 7, |_| true);
    std::fs::write(folder.join("one"), &one).unwrap();
    let other: Vec<u8> = one
        .chunks_exact(12)
        .flat_map(|bytes| if bytes[..2] == [24, 0] { record(24, 4, 78) } else { bytes.try_into().unwrap() })
        .collect();
    std::fs::write(folder.join("other"), &other).unwrap();
    assert!(error().contains("two processes (77 and 78)"), "{}", error());
}

/// The program's two threads as two processes, 177 and 178.
fn two_processes(bytes: &[u8]) -> Vec<u8> {
    let mut thread = 0;
    let mut process = |bytes: &[u8]| -> [u8; 12] {
        match bytes[..2] {
            [22, 0] => thread = u64::from(bytes[4]),
            [24, 0] => return record(24, 4, 77 + thread),
            _ => {}
        }
        bytes.try_into().unwrap()
    };
    bytes.chunks_exact(12).flat_map(&mut process).collect()
}

#[test]
fn of_several_processes_the_one_that_is_wanted_is_read() {
    let two = program(2, 3_000);
    let place = Place::new();
    let folder = place.path("app.dir");
    std::fs::create_dir_all(&folder).unwrap();
    // A core on which both ran in turns; two such cores; a file for each thread.
    let whole = two_processes(&foreign::drmemtrace(&two, 7, |_| true));
    std::fs::write(place.path("core.trace"), &whole).unwrap();
    for thread in [100, 101] {
        let bytes = foreign::drmemtrace(&two, 7, |access| access.thread == thread);
        std::fs::write(folder.join(thread.to_string()), two_processes(&bytes)).unwrap();
    }
    for source in [place.path("core.trace"), folder] {
        let convert = |process| {
            let options = ConvertOptions { process, ..ConvertOptions::default() };
            convert_file(&source, &place.path("trace.nwt"), &options)
        };
        let says = convert(None).unwrap_err().to_string();
        assert!(says.contains("two processes (177 and 178)") && says.contains("--process 177"), "{says}");
        for (process, thread) in [(177, 100), (178, 101)] {
            let report = convert(Some(process)).unwrap();
            let own: Vec<_> = two.iter().filter(|access| access.thread == thread).copied().collect();
            let addresses = |all: Vec<(u16, u64, bool)>| all.into_iter().map(|one| (one.1, one.2)).collect::<Vec<_>>();
            assert!(addresses(accesses(&place)) == addresses(wanted(&own)), "process {process}");
            assert_eq!((report.metadata.instructions, report.metadata.threads), (1_500 * INSTRUCTIONS, 1));
            assert!(report.metadata.warning.unwrap().contains("left out: 1500 accesses by other processes"));
        }
        std::fs::remove_file(place.path("trace.nwt")).unwrap();
        let says = convert(Some(5)).unwrap_err().to_string();
        assert!(says.contains("no process 5 is in it, it has 177, 178"), "{says}");
        assert!(!place.path("trace.nwt").exists());
    }
    let options = ConvertOptions { process: Some(1), ..ConvertOptions::default() };
    let says = place.convert(&foreign::pin(&two), &options).unwrap_err().to_string();
    assert!(says.contains("only drmemtrace files"), "{says}");
}

#[test]
fn the_kernels_parts_prefetches_and_windows_are_left_out_and_named() {
    let one = program(1, 100);
    let mut bytes = foreign::drmemtrace(&one, 7, |_| true);
    let footer = bytes.split_off(bytes.len() - 24);
    for (kind, size, value) in [
        (28, 14, 1),
        (28, 27, 3),
        (10, 4, 0xffff_ffff_8100_0000),
        (0, 8, 0xffff_8880_0000_1000),
        (1, 8, 0x7fff_0000_1000),
        (28, 28, 3),
        (2, 64, 0x7000),
        (40, 64, 0x7000),
        (0, 8, 0xffff_ffff_ff60_0000),
        (20, 64, 0x7000),
        (21, 64, 0x7000),
        (29, 2, 0x40_1000),
    ] {
        bytes.extend(record(kind, size, value));
    }
    bytes.extend(footer);
    let place = Place::new();
    let report = import(&place, &bytes);
    assert!(accesses(&place) == wanted(&one));
    assert_eq!(report.metadata.instructions, 100 * INSTRUCTIONS);
    let warning = report.metadata.warning.unwrap();
    for says in ["3 accesses by the kernel", "2 prefetches", "2 windows"] {
        assert!(warning.contains(says), "{warning}");
    }
}

#[test]
fn cut_files_keep_what_they_have_and_say_so() {
    let one = program(1, 1_000);
    let place = Place::new();
    for (bytes, says) in [
        (foreign::champsim(&one, false), "ends inside a record"),
        (foreign::drmemtrace(&one, 7, |_| true), "without a footer"),
        (foreign::addresses(&one), "ends before its last address"),
        (foreign::numpy(&one), "ends before its last address"),
    ] {
        let report = import(&place, &bytes[..bytes.len() - 13]);
        assert!((998..=1000).contains(&report.accesses), "{says}: {}", report.accesses);
        let warning = report.metadata.warning.unwrap();
        assert!(warning.contains(says), "{warning}");
    }
    for packed in [foreign::gzip, foreign::xz, foreign::lz4] {
        let bytes = packed(&foreign::champsim(&one, false));
        let says = complaint(&bytes[..bytes.len() / 2], None);
        assert!(says.contains("is damaged or cut"), "{says}");
    }
    let zip = foreign::zip(&foreign::drmemtrace(&one, 7, |_| true), 2_400);
    assert!(complaint(&zip[..zip.len() / 2], None).contains("the zip archive is damaged or cut"));
    let mut damaged = zip;
    damaged[100] ^= 0x40;
    let says = complaint(&damaged, None);
    assert!(says.contains("damaged"), "{says}");
}

#[test]
fn records_of_another_size_are_told() {
    let stock = foreign::champsim(&program(1, 400), false);
    // A fork with eight bytes more behind each record, and one with a word behind the flags' word.
    for (stride, at) in [(72, 64), (80, 16)] {
        let fork: Vec<u8> = stock
            .chunks_exact(64)
            .flat_map(|record| {
                let (before, behind) = record.split_at(at.min(64));
                [before, &vec![0xee; stride - 64], behind].concat()
            })
            .collect();
        let says = complaint(&fork, None);
        assert!(says.contains(&format!("records of {stride} bytes")), "{says}");
    }
    let mut damaged = stock;
    damaged[64 * 1000 + 8] = 7;
    let says = complaint(&damaged, Some(Known::ChampSim));
    assert!(says.contains("at byte 64000") && says.contains("branch flag"), "{says}");
}

#[test]
fn what_is_no_trace_says_what_it_is() {
    for (bytes, says) in [
        (&b""[..], "empty"),
        (b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "zip archive without a trace"),
        (b"NWPT0001", "compare --tables"),
        (b"I am a letter.\n", "no line is an access"),
        (b"PAR1\x15", "Parquet"),
        (&[0x80; 4096], "no trace of a known format"),
    ] {
        let error = complaint(bytes, None);
        assert!(error.contains(says), "{error}");
    }
    let mut far = foreign::addresses(&program(1, 100_000));
    far[8 * 90_000 + 7] = 1;
    assert!(complaint(&far, None).contains("at byte 720000"));
    let text = [&foreign::pin(&program(1, 10))[..], b"0x1: R 0xffffffff81000000\n"].concat();
    assert!(complaint(&text, None).contains("line 12"));
}

#[test]
fn the_size_does_not_grow_much_by_the_way_through_another_format() {
    let one = program(1, 200_000);
    let place = Place::new();
    let own = import(&place, &foreign::raw(&one)).bytes_per_access;
    for bytes in [foreign::champsim(&one, false), foreign::drmemtrace(&one, 7, |_| true), foreign::lackey(&one)] {
        let other = import(&place, &bytes).bytes_per_access;
        assert!((other / own - 1.0).abs() < 0.1, "{other} bytes an access instead of {own}");
    }
}

/// Each format's beginning, small enough to be cut and changed everywhere.
fn seeds() -> Vec<Vec<u8>> {
    let two = program(2, 120);
    let drmemtrace = foreign::drmemtrace(&two, 7, |_| true);
    vec![
        foreign::champsim(&two, false),
        foreign::champsim(&two, true),
        foreign::lackey(&two),
        foreign::pin(&two),
        foreign::addresses(&two),
        foreign::numpy(&two),
        foreign::zip(&drmemtrace, 2_400),
        foreign::gzip(&drmemtrace),
        two_processes(&drmemtrace),
        drmemtrace,
        foreign::raw(&two),
        foreign::lz4(&foreign::champsim(&two, false)),
        foreign::xz(&foreign::pin(&two)),
        system(&two),
        own(&two),
    ]
}

/// As the system-mode plugin of `linux/harness` writes it.
fn system(program: &[Access]) -> Vec<u8> {
    let mut bytes = b"NWSM0001".to_vec();
    bytes.extend((program.len() as u64).to_le_bytes());
    for access in program {
        bytes.extend([access.address, 0x1234_5000 | u64::from(access.store) | 3 << 52].map(u64::to_le_bytes).concat());
    }
    bytes
}

/// A trace of ours.
fn own(program: &[Access]) -> Vec<u8> {
    let place = Place::new();
    import(&place, &foreign::raw(program));
    std::fs::read(place.path("trace.nwt")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_bytes_a_trace_comes_out_or_one_line(
        seed in 0..seeds().len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        from in prop::option::of(prop::sample::select(Known::ALL.to_vec())),
        process in prop::option::of(177u64..179),
    ) {
        let mut bytes = seeds().swap_remove(seed);
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(index) = cut {
            bytes.truncate(index.index(bytes.len()));
        }
        let place = Place::new();
        match place.convert(&bytes, &ConvertOptions { from, process, ..ConvertOptions::default() }) {
            Ok(_) => { check(&place.path("trace.nwt")).unwrap(); }
            Err(error) => {
                prop_assert!(!error.to_string().contains('\n') && !place.path("trace.nwt").exists(), "{}", error);
            }
        }
    }
}
