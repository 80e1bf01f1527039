// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guards against a technique that silently runs its baseline: its own counters move, and the
//! statistics differ from the baseline's as they should. And which mixes there are, and which are
//! refused.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::{MachineError, RunResult};

const GUPS: &str = "kind = 'gups'\nfootprint = '128 MiB'\nwarm_accesses = 100000\nmeasured_accesses = 200000";
/// Four threads that touch one table in turn: stock frames of a group end up on several lines.
const STORE: &str = "kind = 'key_value'\nserver = 'redis'\nfootprint = '64 MiB'\nwarm_accesses = 1000\nmeasured_accesses = 50000\nthreads = 4";

/// Runs `workload` over `kernels`, the bodies of their tables, bottom first.
fn run(workload: &str, kernels: &[&str], more: &str) -> Result<RunResult, MachineError> {
    let kernels: String = kernels.iter().map(|kernel| format!("[[kernels]]\n{kernel}\n")).collect();
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n[workload.generator]\n{workload}\n{kernels}{more}\n"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

fn of_manager(result: &RunResult, layer: usize, name: &str) -> u64 {
    result.statistics.kernels[layer].manager_counters[name]
}

fn of_tables(result: &RunResult, layer: usize, name: &str) -> u64 {
    result.statistics.kernels[layer].table_counters[name]
}

#[test]
fn mthp_maps_whole_folios_and_packs_host_ptes() {
    let stock = run(STORE, &["", ""], "").unwrap();
    let folios = run(STORE, &["", "manager = { kind = 'mthp', folio = '32 KiB' }"], "").unwrap();
    assert!(of_manager(&folios, 1, "folios") > 1000);
    assert!(
        folios.statistics.kernels[1].counters.faults_4k < stock.statistics.kernels[1].counters.faults_4k / 4,
        "a fault maps eight pages"
    );
    assert!(
        folios.statistics.kernels[1].counters.zeroed_4k >= stock.statistics.kernels[1].counters.zeroed_4k,
        "and zeroes them all"
    );
    assert!(folios.row.host_pt_fragmentation < stock.row.host_pt_fragmentation);
}

#[test]
fn thp_takes_walks_away() {
    let small = run(GUPS, &["", ""], "").unwrap();
    let huge = run(GUPS, &["manager = { kind = 'thp' }", "manager = { kind = 'thp' }"], "").unwrap();
    assert!(huge.statistics.kernels[1].counters.faults_2m >= 60 && small.statistics.kernels[1].counters.faults_2m == 0);
    assert!(huge.row.walks_per_kiloaccess < small.row.walks_per_kiloaccess);
}

#[test]
fn superpage_managers_make_superpages_each_in_its_way() {
    let plain = run(GUPS, &[""], "").unwrap();
    let managed = |manager: &str| run(GUPS, &[&format!("manager = {{ {manager} }}")], "").unwrap();
    let fewer_walks = |result: &RunResult| result.row.walks_per_kiloaccess < plain.row.walks_per_kiloaccess;
    // 128 MiB are 64 blocks of 2 MiB.
    let freebsd = managed("kind = 'freebsd'");
    assert!(of_manager(&freebsd, 0, "reservations") >= 64 && freebsd.statistics.kernels[0].counters.promotions >= 60);
    assert_eq!(freebsd.statistics.kernels[0].counters.faults_2m, 0, "each page is touched before it is prepared");
    assert!(fewer_walks(&freebsd));
    let sync_64 = managed("kind = 'quicksilver'");
    assert!(of_manager(&sync_64, 0, "completed") >= 60 && sync_64.statistics.kernels[0].counters.promotions >= 60);
    assert!(
        sync_64.statistics.kernels[0].counters.faults_4k < freebsd.statistics.kernels[0].counters.faults_4k / 4
            && fewer_walks(&sync_64)
    );
    let sync_1 = managed("kind = 'quicksilver', threshold = 1");
    assert!(sync_1.statistics.kernels[0].counters.zeroed_2m >= 60 && fewer_walks(&sync_1));
    let ingens = managed("kind = 'ingens', scan_sleep_ms = 10");
    assert!(
        of_manager(&ingens, 0, "promoted_on_request") >= 32
            && ingens.statistics.kernels[0].counters.copied_collapse > 10_000
    );
    let hawkeye = managed("kind = 'hawkeye', sample_sleep_ms = 10, sample_ms = 10, scan_sleep_ms = 10");
    assert!(of_manager(&hawkeye, 0, "promoted") > 0 && of_manager(&hawkeye, 0, "samples") > 0);
    for result in [&freebsd, &sync_64, &sync_1, &ingens, &hawkeye] {
        assert_ne!(result.statistics.kernels[0].counters, plain.statistics.kernels[0].counters);
    }
}

#[test]
fn all_that_goes_together_runs_together_with_five_levels() {
    // HugeGPT's host maps huge pages where it is asked to, and sorts its own nodes for ASAP.
    let host = "levels = 5\nmanager = { kind = 'thp', enabled = 'madvise' }\ntables = { kind = 'asap' }";
    let guest = "levels = 5\nmanager = { kind = 'ptemagnet' }\ntables = { kind = 'hugegpt' }";
    let baseline = run(STORE, &["levels = 5", "levels = 5"], "").unwrap();
    let mix = run(STORE, &[host, guest], "[asap]\nguest_levels = []\nhost_levels = [1, 2]").unwrap();
    assert!(of_manager(&mix, 1, "reservations") > 1000);
    assert!(of_tables(&mix, 1, "huge_regions") > 0);
    assert!(of_tables(&mix, 0, "placed") > 0);
    assert!(mix.statistics.mmu.prefetch.useful > 0);
    assert_eq!(mix.row.host_pt_fragmentation, Some(1.0));
    assert!(mix.row.walk_latency_cycles < baseline.row.walk_latency_cycles);
}

/// The guard for POM-TLB: it answers, most walks are one reference to it, and nothing else of the
/// run differs.
#[test]
fn a_pom_tlb_answers_in_place_of_walks() {
    let pom = "[accelerator]\nkind = 'pom-tlb'";
    for kernels in
        [&[""][..], &["", ""], &["paging = { kind = 'shadow' }", ""], &["paging = { kind = 'segments', max = 2 }", ""]]
    {
        let (plain, with) = (run(GUPS, kernels, "").unwrap(), run(GUPS, kernels, pom).unwrap());
        let found: u64 = with.statistics.mmu.pom_tlb.hits.iter().sum();
        let walks = with.statistics.total.walks;
        assert_eq!(found + with.statistics.mmu.pom_tlb.misses, walks);
        assert!(found * 10 > walks * 9, "{kernels:?}: {found} of {walks}");
        assert_eq!(with.statistics.mmu.tlb, plain.statistics.mmu.tlb, "the TLBs see the same");
        assert!(with.row.references_per_walk < plain.row.references_per_walk.map(|references| references / 5.0));
        if kernels == ["", ""] {
            assert!(with.row.walk_latency_cycles < plain.row.walk_latency_cycles, "{:?}", with.row);
        }
        let counts =
            |result: &RunResult| result.statistics.kernels.iter().map(|k| k.counters.clone()).collect::<Vec<_>>();
        assert_eq!(counts(&with), counts(&plain), "the kernels do the same");
        assert_eq!(plain.statistics.mmu.pom_tlb, Default::default());
    }
    let tiny = run(GUPS, &["", ""], &format!("{pom}\nsize = '4 KiB'")).unwrap().statistics.mmu.pom_tlb.clone();
    assert!(tiny.hits[0] < tiny.misses / 10, "{tiny:?}");
    let asap = "[asap]\nguest_levels = [1]";
    let sorted = "tables = { kind = 'asap' }";
    let both = run(GUPS, &[sorted, sorted], &format!("{asap}\n{pom}")).unwrap_err().to_string();
    assert!(both.contains("give one of the two"), "{both}");
}

/// The guard for elastic cuckoo page tables: a walk has one step natively and three in a VM, each
/// of parallel references, and nothing else of the run differs.
#[test]
fn hashed_page_tables_are_walked_in_place_of_radix_tables() {
    let cuckoo = "[accelerator]\nkind = 'elastic-cuckoo'";
    let thp = "manager = { kind = 'thp' }";
    let large = GUPS.replace("128 MiB", "4 GiB");
    let cases = [
        (&[""][..], 1, &*large),
        (&["", ""], 3, &large),
        (&[thp, thp], 3, &large),
        (&["levels = 5", "levels = 5"], 3, GUPS),
    ];
    for (kernels, steps, workload) in cases {
        let (plain, with) = (run(workload, kernels, "").unwrap(), run(workload, kernels, cuckoo).unwrap());
        let own = &with.statistics.mmu.cuckoo;
        let walks = with.statistics.total.walks;
        let references = with.statistics.mmu.walk_events.total_references();
        assert_eq!(references - own.beside, steps * walks, "{kernels:?}: one reference a step has what is looked for");
        assert!(own.walk_cache_hits[0] > walks * 9 / 10, "{kernels:?}: {own:?}");
        assert_eq!(
            own.beside == 0,
            kernels == [thp, thp],
            "the way of a large page is known, as long as the caches know its section"
        );
        assert_eq!(with.statistics.mmu.tlb, plain.statistics.mmu.tlb, "the TLBs see the same");
        assert_eq!(with.statistics.mmu.guest_pwc, Default::default());
        assert_ne!(with.row.walk_latency_cycles, plain.row.walk_latency_cycles);
        if workload == large && kernels[0] != thp {
            // No cache has all lines of either table.
            assert!(with.row.walk_latency_cycles < plain.row.walk_latency_cycles, "{:?}", with.row);
        }
        let counts =
            |result: &RunResult| result.statistics.kernels.iter().map(|k| k.counters.clone()).collect::<Vec<_>>();
        assert_eq!(counts(&with), counts(&plain), "the kernels do the same");
        assert_eq!(plain.statistics.mmu.cuckoo, Default::default());
    }
}

#[test]
fn asap_beside_neighbours_walks_as_often_as_without_it() {
    // Each mapping of theirs has the host make table nodes contiguous: that is no reason to flush
    // what the program uses.
    let crowd = "[[colocated]]\nworkload.churn = { size = '4 MiB' }\ncount = 6";
    let stock = run(GUPS, &["", ""], crowd).unwrap();
    let sorted = "tables = { kind = 'asap' }";
    let more = format!("{crowd}\n[asap]\nguest_levels = [1, 2]\nhost_levels = [1, 2]");
    let asap = run(GUPS, &[sorted, sorted], &more).unwrap();
    assert!(asap.statistics.kernels[1].counters.hypercalls > 100 && of_tables(&asap, 1, "made_contiguous") > 100);
    let walks = |result: &RunResult| result.row.walks_per_kiloaccess.unwrap();
    assert!(walks(&asap) < 1.001 * walks(&stock), "{} against {}", walks(&asap), walks(&stock));
    assert!(asap.row.walk_latency_cycles < stock.row.walk_latency_cycles);
}

#[test]
fn a_vm_in_segments_and_one_under_ept_share_a_host() {
    let beside = "[[colocated]]\nvm = 'own'\nworkload.generator = { kind = 'gups', footprint = '16 MiB', measured_accesses = 1000000000 }";
    let result = run(GUPS, &["paging = { kind = 'segments', max = 2 }", ""], beside).unwrap();
    assert_eq!(result.statistics.kernels[0].paging.as_deref(), Some("segments (1)"));
    let opt1 = "paging = { kind = 'segments', max = 2, allocator = 'compromis-opt1' }";
    let same = run(GUPS, &[opt1, ""], beside).unwrap();
    assert_eq!(same.statistics.kernels[0].paging.as_deref(), Some("segments (1)"), "the options differ on aged memory");
    assert_eq!(result.row.host_references_per_walk, Some(0.0));
    let other = &result.statistics.colocated[0];
    assert!(other.host_pt_fragmentation.is_some(), "the hardware walks the host's table for the other VM");
    assert!(other.mmu.as_ref().unwrap().walk_cycles > 0);
}

#[test]
fn shadow_paging_pays_for_a_program_that_gives_memory_back() {
    // A neighbour that maps and unmaps without end, in a VM of its own kind: the measured program's
    // kernel is shadowed.
    let churn = "[[colocated]]\nworkload.churn = { size = '4 MiB' }";
    let ept = run(GUPS, &["", ""], churn).unwrap();
    let shadow = run(GUPS, &["paging = { kind = 'shadow' }", ""], churn).unwrap();
    let flushed =
        shadow.statistics.kernels[0].counters.shadow_flushes + shadow.statistics.kernels[0].counters.shadow_invlpgs;
    assert!(flushed > 0, "what the neighbour unmaps, its kernel flushes");
    assert!(
        shadow.statistics.kernels[0].counters.shadow_unsyncs > 0
            && shadow.statistics.kernels[0].counters.shadow_zaps > 0
    );
    assert_eq!(
        ept.statistics.kernels[0].counters.shadow_flushes + ept.statistics.kernels[0].counters.shadow_invlpgs,
        0
    );
}

#[test]
fn techniques_act_in_a_vm_in_a_vm() {
    // A neighbour that maps memory meanwhile: stock frames of a group end up on several lines.
    let churn = "[[colocated]]\nworkload.churn = { size = '4 MiB' }";
    let stock = run(GUPS, &["", "", ""], churn).unwrap();
    let magnet = run(GUPS, &["", "", "manager = { kind = 'ptemagnet' }"], churn).unwrap();
    assert!(of_manager(&magnet, 2, "reservations") > 1000);
    let packed = |result: &RunResult| result.row.host_references_per_walk;
    assert!(packed(&stock).is_some() && packed(&magnet).is_some());
    assert_eq!(magnet.row.walks_per_kiloaccess, stock.row.walks_per_kiloaccess);
    assert!(
        magnet.row.walk_latency_cycles < stock.row.walk_latency_cycles,
        "the composed table's PTEs are packed, too"
    );
    // HugeGPT asks the middle hypervisor, whose huge pages are huge in the composed table if the
    // lowest has them as well.
    let thp = "manager = { kind = 'thp', enabled = 'madvise' }";
    let lowest = "manager = { kind = 'thp' }";
    let plain = run(GUPS, &[lowest, thp, ""], "").unwrap();
    let huge = run(GUPS, &[lowest, thp, "tables = { kind = 'hugegpt' }"], "").unwrap();
    assert!(of_tables(&huge, 2, "huge_regions") > 0);
    assert!(huge.row.host_references_per_walk < plain.row.host_references_per_walk);
    let clustered = "clustered_tlb = true";
    let text = |more: &str| {
        let magnet = "[[kernels]]\n[[kernels]]\n[[kernels]]\nmanager = { kind = 'ptemagnet' }\n";
        format!("schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{more}\n[workload.generator]\n{GUPS}\n{magnet}")
    };
    let walks = |more: &str| {
        let path = Path::new("test.toml");
        let run = nestwalk_machine::run(&text(more), path, Path::new("."), &mut |_| ControlFlow::Continue(()));
        run.unwrap().row.walks_per_kiloaccess
    };
    assert!(walks(clustered) < walks(""));
}

#[test]
fn mixes_that_cannot_be_are_refused_with_the_reason() {
    let refused = |kernels: &[&str], more: &str, reason: &str| {
        let message = run(GUPS, kernels, more).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(reason) && !message.contains('\n'), "{message}");
    };
    let shadow = "paging = { kind = 'shadow' }";
    let segments = |max: u32| format!("paging = {{ kind = 'segments', max = {max} }}");
    let sorted = "tables = { kind = 'asap' }";
    let prefetch = "[asap]\nguest_levels = [1]";
    refused(&[shadow], "", "the topmost kernel hosts no VM");
    refused(&["", shadow], "", "the topmost kernel hosts no VM");
    refused(&[shadow, "", ""], "", "a VM on a VM is modelled with EPT at both levels only");
    refused(&["", &segments(1), ""], "", "a VM on a VM is modelled with EPT at both levels only");
    refused(&[shadow, sorted], prefetch, "tables that the hardware walks in two dimensions");
    refused(&[&segments(1), sorted], prefetch, "tables that the hardware walks in two dimensions");
    refused(&[sorted, sorted, sorted], prefetch, "with a VM on a VM the hardware walks a table that no kernel sorts");
    refused(&[&segments(0), ""], "", "give 1 to 8 segments");
    refused(&[&segments(9), ""], "", "give 1 to 8 segments");
    let cuckoo = "[accelerator]\nkind = 'elastic-cuckoo'";
    refused(&[shadow, ""], cuckoo, "hashed page tables are those of a kernel");
    refused(&[&segments(1), ""], cuckoo, "hashed page tables are those of a kernel");
    refused(&["", "", ""], cuckoo, "a table that no kernel keeps");
    let xen = "paging = { kind = 'segments', max = 1, allocator = 'xen' }";
    refused(&[xen, ""], "", "give one of compromis-opt1, compromis-opt2, best-fit, first-fit");
    refused(&["", "manager = { kind = 'ptemagnet', size = '2 MiB' }"], "", "unknown");
}

/// The same with keys of the scenario itself.
fn run_with(keys: &str, workload: &str, kernels: &[&str]) -> Result<RunResult, MachineError> {
    let kernels: String = kernels.iter().map(|kernel| format!("[[kernels]]\n{kernel}\n")).collect();
    let text = format!(
        "schema = 1\nname = 'test'\nmachine = 'broadwell-asap'\n{keys}\n[workload.generator]\n{workload}\n{kernels}"
    );
    nestwalk_machine::run(&text, Path::new("test.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()))
}

const CONTIGUOUS: &str = "contiguous_tlb = true";
const FOLIOS_64K: &str = "manager = { kind = 'mthp', folio = '64 KiB' }";

/// The guard for contiguous blocks: an entry for 64 KiB takes walks away where the kernels of all
/// levels make such blocks, and where one does not nothing at all differs.
#[test]
fn contiguous_blocks_take_walks_away_where_every_kernel_makes_them() {
    let huge = "manager = { kind = 'thp' }";
    let folios_32k = "manager = { kind = 'mthp', folio = '32 KiB' }";
    let segments = "paging = { kind = 'segments', max = 2 }";
    let cases: [(&[&str], bool); 8] = [
        (&[FOLIOS_64K], true),
        (&[folios_32k], false),
        (&[""], false),
        (&[FOLIOS_64K, FOLIOS_64K], true),
        (&[huge, FOLIOS_64K], true),
        (&[segments, FOLIOS_64K], true),
        (&["", FOLIOS_64K], false),
        (&[FOLIOS_64K, ""], false),
    ];
    for (kernels, fewer) in cases {
        let (plain, with) = (run_with("", GUPS, kernels).unwrap(), run_with(CONTIGUOUS, GUPS, kernels).unwrap());
        let fills = with.statistics.mmu.contiguous.fills;
        assert_eq!(plain.statistics.mmu.contiguous.fills, 0, "{kernels:?}");
        assert_eq!(fills > 0, fewer, "{kernels:?}: {fills}");
        if fewer {
            // 128 MiB are 2048 blocks, for an L2 TLB of 1536 entries, and 32768 pages.
            let walks = |result: &RunResult| result.row.walks_per_kiloaccess.unwrap();
            assert!(walks(&with) < 0.5 * walks(&plain), "{kernels:?}: {} for {}", walks(&with), walks(&plain));
        } else {
            assert_eq!(with.statistics.mmu, plain.statistics.mmu, "{kernels:?}");
        }
    }
}

/// The guard for FreeBSD's lower level: pages are promoted at 64 KiB, and where no 2 MiB fill up
/// that is what takes walks away.
#[test]
fn freebsds_lower_level_promotes_64_kib_of_reservations_that_do_not_fill_up() {
    let one = "manager = { kind = 'freebsd' }";
    let two = "manager = { kind = 'freebsd', promote_64k = true }";
    let upper = run_with(CONTIGUOUS, GUPS, &[one]).unwrap();
    let both = run_with(CONTIGUOUS, GUPS, &[two]).unwrap();
    assert!(of_manager(&both, 0, "promotions_64k") >= 60 * 32);
    let promotions = |result: &RunResult| result.statistics.kernels[0].counters.promotions;
    assert_eq!(promotions(&both), promotions(&upper), "2 MiB are promoted as before");
    // A guest with page cache in each 2 MiB, which it does not touch again: no 2 MiB of the host's
    // memory fill up, and the guest's folios lie over 64 KiB that do.
    let guest =
        format!("{FOLIOS_64K}\nstart = {{ kind = 'fragmented', blocks_permille = 1000, frames_per_block = 16 }}");
    let upper = run_with(CONTIGUOUS, GUPS, &[one, &guest]).unwrap();
    let both = run_with(CONTIGUOUS, GUPS, &[two, &guest]).unwrap();
    let walks = |result: &RunResult| result.row.walks_per_kiloaccess.unwrap();
    assert_eq!(upper.statistics.mmu.contiguous.fills, 0);
    assert!(walks(&both) < 0.5 * walks(&upper), "{} for {}", walks(&both), walks(&upper));
    let refused = |keys: &str, kernels: &[&str], reason: &str| {
        let message = run_with(keys, GUPS, kernels).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(reason) && !message.contains('\n'), "{message}");
    };
    refused("", &[two], "give contiguous_tlb = true");
    refused("", &[two, ""], "give contiguous_tlb = true");
    refused("contiguous_tlb = true\nclustered_tlb = true", &[""], "contiguous TLB entries");
}
