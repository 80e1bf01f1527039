// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::generator::windows::played::{config, play};
use crate::stream::Workload as _;

#[test]
fn memory_is_given_back_fold_by_fold_and_the_footprint_is_what_is_in_use_at_the_most() {
    for (more, read) in [("", 20), ("folds = 0", 4), ("blocks = 5\nfolds = 2", 10), ("blocks = 7\nfolds = 3", 21)] {
        let config = config(more);
        let facts = RowBlocks::windows(&config).unwrap().facts();
        let played = play(RowBlocks::windows(&config).unwrap());
        let used = played.used_max as u64;
        assert!(facts.footprint <= config.footprint && facts.footprint.0 * 100 >= config.footprint.0 * 99, "{facts:?}");
        assert!(used <= facts.footprint.0 && used * 100 >= facts.footprint.0 * 97, "{more}: {used} of {facts:?}");
        assert_eq!(played.read.len(), read, "{more}");
        // Windows come after the first touches of what they use.
        assert!(played.early < 40, "{more}: {}", played.early);
        let windows = read as u64 * config.windows;
        assert_eq!((played.warmed, played.measured, played.windows), (40_000, 200_000, windows), "{more}");
    }
}

#[test]
fn a_block_of_kddb_raw_has_188_bytes_a_row() {
    // 19,264,097 rows in four blocks, 1,163,024 columns.
    let config = RowBlocksConfig { footprint: PageCount(1820 * 256), ..config("") };
    let plan = RowBlocks::new(&config).unwrap().plan;
    assert_eq!(plan.buffer.pages.len(), PageCount::covering(HEADER + plan.rows * 188).0);
    assert!(plan.rows.abs_diff(19_264_097 / 4) < 50_000, "{} rows", plan.rows);
    assert!(plan.columns.abs_diff(1_163_024) < 40_000, "{} columns", plan.columns);
}

#[test]
fn a_row_takes_as_many_accesses_as_are_counted_for_it() {
    let mut program = RowBlocks::new(&config("")).unwrap();
    program.trained = 4;
    let passes = [Pass::Parse, Pass::Label, Pass::Prepare, Pass::Shuffle, Pass::Solve, Pass::Objective, Pass::Test];
    for pass in passes {
        program.seek(pass, 0);
        let mut accesses = Vec::new();
        (0..10_000).for_each(|_| program.operate(0, &mut accesses));
        let (made, counted) = (accesses.len() as u64, 10_000 * program.per_row(pass));
        assert!(made.abs_diff(counted) * 50 <= counted, "{pass:?}: {made} for {counted}");
    }
    // As captured: 26.0 for a row that is prepared, 92.9 for one that is shuffled and solved.
    assert_eq!(program.per_row(Pass::Prepare), 26);
    assert!((90..=95).contains(&(program.per_row(Pass::Shuffle) + program.per_row(Pass::Solve))));
}

#[test]
fn a_fold_is_trained_with_the_blocks_that_it_does_not_test() {
    let all = steps(4, 5);
    let of = |wanted: fn(&Step) -> bool| all.iter().filter(|&step| wanted(step)).count();
    // Five folds of four blocks: the first one tests none.
    assert_eq!(of(|step| matches!(step, Step::Train(..))), 16);
    assert_eq!(of(|step| matches!(step, Step::Test(..))), 4);
    assert_eq!(all.iter().take(2).collect::<Vec<_>>(), [&Step::Begin(4), &Step::Train(0, 0)]);
    let one = steps(4, 0);
    assert_eq!(one.len(), 7);
}

#[test]
fn weights_are_of_the_fields_of_a_row() {
    let program = RowBlocks::new(&config("")).unwrap();
    let columns = program.plan.columns;
    let mut seen = std::collections::BTreeSet::new();
    for row in 0..2000 {
        let places: Vec<u64> = (0..9).map(|entry| program.weight(row, entry).0).collect();
        assert!(places.is_sorted(), "{places:?}: columns ascend");
        seen.insert(places[8]);
    }
    // Steps are drawn from 935 in 1000 of all columns.
    assert!(seen.len() > 1000 && seen.len() as u64 <= columns * 935 / 1000 + 1, "{} of {columns}", seen.len());
}

#[test]
fn what_is_impossible_is_refused() {
    for (more, word) in [
        ("entries = 2", "entries"),
        ("rows_per_column = 0", "rows_per_column"),
        ("blocks = 0", "blocks"),
        ("folds = 1", "folds"),
        ("blocks = 1", "folds"),
        ("windows = 1", "windows"),
        ("threads = 2", "threads"),
        ("footprint = '2 MiB'", "footprint"),
    ] {
        let mut table: toml::Table = toml::from_str("footprint = '24 MiB'").unwrap();
        table.extend(toml::from_str::<toml::Table>(more).unwrap());
        let error = RowBlocks::new(&table.try_into().unwrap()).err().unwrap_or_else(|| panic!("{more} is taken"));
        assert!(error.to_string().contains(word), "{error}");
    }
}
