// SPDX-License-Identifier: MIT OR Apache-2.0
//! A build of short processes whose files lie in the page cache, in whole runs.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::RunResult;

fn run(units: u64, kernels: &str, more: &str) -> RunResult {
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'kaby-lake'\n[workload.generator]\nkind = 'build'\nunits = {units}\n\
         warm_accesses = 20000\nmeasured_accesses = 50000\n{kernels}{more}"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn native(manager: &str, more: &str) -> String {
    format!("[[kernels]]\nmemory = '1 GiB'\nmanager = {{ kind = {manager} }}\n{more}")
}

/// What the program's kernel did for it in the whole run.
fn count(result: &RunResult, name: &str) -> u64 {
    result.whole_run.kernels.last().unwrap().counters.get(name).copied().unwrap_or(0)
}

fn superpages(result: &RunResult) -> u64 {
    count(result, "faults_2m").max(count(result, "promotions"))
}

#[test]
fn a_build_reads_its_files_once_and_finds_them_in_the_page_cache_afterwards() {
    let (one, two) = (run(1, &native("'linux4k'", ""), ""), run(2, &native("'linux4k'", ""), ""));
    assert_eq!(
        serde_json::to_string(&two).unwrap(),
        serde_json::to_string(&run(2, &native("'linux4k'", ""), "")).unwrap()
    );
    let files = |result: &RunResult| result.contiguity[0].ended.cached;
    let read = |result: &RunResult| count(result, "file_pages_read");
    assert!(read(&one) > 8000 && files(&one) >= read(&one), "{} of {}", read(&one), files(&one));
    // cc1 alone has 8141 pages: the second time only its source and some headers are missing.
    assert!(read(&two) - read(&one) < 2000, "{} and {}", read(&one), read(&two));
    assert!(count(&two, "faults_file") > 600 && count(&two, "pages_mapped_around") > 10 * count(&two, "faults_file"));
    // Four processes a unit, and the last compiler.
    assert_eq!((count(&two, "forks"), count(&two, "exits")), (9, 8));
    assert_eq!(two.contiguity[0].started.cached, 0);
    assert!(two.whole_run.cycles["files"] > 0);
}

#[test]
fn sync_64_makes_fewer_superpages_of_a_build_than_sync_1_and_files_that_are_read_in_part_stay_small() {
    let [one, sixty_four] =
        [1, 64].map(|threshold| run(4, &native(&format!("'quicksilver', threshold = {threshold}"), ""), ""));
    // A chunk of a shell and of gcc, of which few pages are used, is a superpage of Sync-1's only.
    assert!(superpages(&one) >= superpages(&sixty_four) + 8, "{} {}", superpages(&one), superpages(&sixty_four));
    // A third of the compiler is never read, so that no 2 MiB of it are whole.
    let own = |name: &str| one.statistics.kernels[0].manager_counters[name];
    assert!(own("file_reservations") > 10 && own("file_superpages_mapped") == 0);
    let thp = run(4, &native("'thp'", ""), "");
    assert!(superpages(&thp).abs_diff(superpages(&one)) <= 3, "{} {}", superpages(&thp), superpages(&one));
    assert_eq!(count(&thp, "faults_file"), count(&one, "faults_file"));
}

#[test]
fn glibc_s_heap_grows_past_what_a_fault_can_map_large() {
    let brk = |manager: &str| run(2, &native(manager, ""), "").whole_run.faults;
    let kernels = native("'thp'", "");
    let grown = run(2, &kernels.replacen("[[kernels]]", "heap = 'brk'\n[[kernels]]", 1), "");
    assert!(superpages(&grown) < 20, "{}", superpages(&grown));
    assert!(grown.whole_run.faults > 2 * brk("'thp'"));
}

#[test]
fn jobs_beside_each_other_share_the_page_cache() {
    let job = "[[colocated]]\nworkload.generator = { kind = 'build', units = 2, measures = false, seed = 9 }\n\
               count = 2\ncores = 'none'\nuntil = 'populated'\n";
    let alone = run(2, &native("'freebsd'", "cpus = 2\n"), "");
    let beside = run(2, &native("'freebsd'", "cpus = 2\n"), job);
    let of_others = &beside.statistics.colocated[0];
    assert!(of_others.touches > 20_000, "{}", of_others.touches);
    let read = |result: &RunResult| count(result, "file_pages_read");
    assert!(read(&beside) < read(&alone), "{} and {}: others have read some of it", read(&beside), read(&alone));
}

#[test]
fn in_a_vm_the_page_cache_is_the_guest_s() {
    let kernels = "[[kernels]]\nmanager = { kind = 'thp' }\n[[kernels]]\nmemory = '512 MiB'\n";
    let nested = run(1, kernels, "");
    assert_eq!(nested.contiguity[0].ended.cached, 0);
    assert!(nested.contiguity[1].ended.cached > 8000);
}
