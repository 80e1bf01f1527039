// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each error is one line that names the place and the remedy.

use std::ops::ControlFlow;
use std::path::Path;

const WORKLOAD: &str =
    "[workload.generator]\nkind = 'gups'\nfootprint = '16 MiB'\nwarm_accesses = 10\nmeasured_accesses = 10\n";

fn error(head: &str, tail: &str) -> String {
    let text = format!("schema = 1\nname = 'bad'\n{head}\n{WORKLOAD}{tail}");
    let result =
        nestwalk_machine::run(&text, Path::new("dir/bad.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()));
    let message = result.map(|_| ()).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn an_unknown_machine() {
    let message = error("machine = 'skylake-6183'", "[[kernels]]");
    assert!(message.contains("unknown machine 'skylake-6183', did you mean 'skylake-6138'?"), "{message}");
}

#[test]
fn an_unknown_key_with_its_place_and_the_nearest() {
    let message = error("machine = 'zen4'", "[[kernels]]\nmanger = { kind = 'thp' }");
    assert!(message.starts_with("dir/bad.toml:10:1: unknown field `manger`"), "{message}");
    assert!(message.ends_with("did you mean `manager`?"), "{message}");
}

#[test]
fn an_unknown_manager() {
    let message = error("machine = 'zen4'", "[[kernels]]\nmanager = { kind = 'tph' }");
    assert!(message.contains("`tph`") && message.contains("did you mean `thp`?"), "{message}");
}

#[test]
fn a_guest_larger_than_its_host() {
    let message = error("machine = 'zen4'", "[[kernels]]\nmemory = '1 GiB'\n[[kernels]]\nmemory = '2 GiB'");
    assert!(message.contains("the guest's memory (2 GiB) must be smaller than the host's (1 GiB)"), "{message}");
}

#[test]
fn a_program_larger_than_its_memory() {
    let message = error("machine = 'zen4'", "[[kernels]]\nmemory = '8 MiB'");
    assert!(message.contains("memory = \"8 MiB\" is too little"), "{message}");
}

#[test]
fn too_many_or_too_few_kernels() {
    assert!(error("machine = 'zen4'\nkernels = []", "").contains("kernels: there are 0: give one"));
    assert!(error("machine = 'zen4'", &"[[kernels]]\n".repeat(4)).contains("kernels: there are 4: give one"));
}

#[test]
fn impossible_levels_and_a_file_from_another_version() {
    assert!(error("machine = 'zen4'", "[[kernels]]\nlevels = 3").contains("levels = 3"));
    let text = "schema = 2\nname = 'new'\nmachine = 'zen4'\nworkload = { trace = 'x' }\n[[kernels]]\n";
    let result = nestwalk_machine::run(text, Path::new("x.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()));
    assert!(result.unwrap_err().to_string().contains("schema 2; this version reads schema 1"));
}

#[test]
fn a_trace_that_does_not_exist() {
    let text = "schema = 1\nname = 'x'\nmachine = 'zen4'\nworkload = { trace = 'redsi' }\n[[kernels]]\n";
    let result = nestwalk_machine::run(text, Path::new("x.toml"), Path::new("."), &mut |_| ControlFlow::Continue(()));
    let message = result.unwrap_err().to_string();
    assert!(message.contains("unknown trace 'redsi'"), "{message}");
}

#[test]
fn a_machine_that_cannot_be_built() {
    let dir = tempfile::tempdir().unwrap();
    let machine = std::fs::read_to_string("../../machines/zen4.toml").unwrap();
    let broken = machine.replacen("ways = 8", "ways = 0", 1);
    assert_ne!(machine, broken);
    std::fs::write(dir.path().join("broken.toml"), broken).unwrap();
    let text = format!("schema = 1\nname = 'bad'\nmachine = 'broken.toml'\n{WORKLOAD}[[kernels]]\n");
    let path = dir.path().join("scenario.toml");
    let result = nestwalk_machine::run(&text, &path, Path::new("."), &mut |_| ControlFlow::Continue(()));
    let message = result.unwrap_err().to_string();
    assert!(message.contains("broken.toml:") && message.contains("mmu.l1d.ways = 0: give 1 to 64 ways"), "{message}");
}

proptest::proptest! {
    /// What the fuzz target `scenario` does, on small changes of a good file: refused in one line
    /// or read, never a panic.
    #[test]
    fn a_damaged_scenario_is_refused_in_one_line(place in 0_usize..400, byte in proptest::prelude::any::<u8>(), cut in 0_usize..400) {
        let mut text = format!("schema = 1\nname = 'x'\nmachine = 'zen4'\n{WORKLOAD}[[kernels]]\nmemory = '1 GiB'\nlevels = 5\n").into_bytes();
        let end = text.len();
        text[place % end] = byte;
        text.truncate(cut % end + 1);
        if let Err(error) = nestwalk_machine::Configuration::parse(&String::from_utf8_lossy(&text), Path::new("x.toml")) {
            let message = error.to_string();
            proptest::prop_assert!(!message.contains('\n'), "{}", message);
        }
    }
}

#[test]
fn an_asap_that_its_kernels_do_not_serve() {
    let sorted = "[[kernels]]\ntables = { kind = 'asap' }\n";
    let message = error("machine = 'zen4'", "[[kernels]]\n[asap]\nguest_levels = [1]");
    assert!(message.contains("guest_levels = [1], but that kernel's table nodes are not sorted"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]\nguest_levels = [1]\nhost_levels = [1]"));
    assert!(message.contains("host_levels in a native run"), "{message}");
    let message = error("machine = 'zen4'", &format!("[[kernels]]\n{sorted}[asap]\nhost_levels = [1]"));
    assert!(message.contains("host_levels = [1], but"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]\nguest_levels = [3]"));
    assert!(message.contains("give it tables = { kind = \"asap\", levels = 3 }"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]\nguest_levels = [4]"));
    assert!(message.contains("level 4 is the root"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]\nguest_levels = [5]"));
    assert!(message.contains("asap.guest_levels = 5: give 1 to 4 levels"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]"));
    assert!(message.contains("there is nothing to prefetch"), "{message}");
    let message = error("machine = 'zen4'", &format!("{sorted}[asap]\nguest_levels = [1]\nregisters = 0"));
    assert!(message.contains("asap.registers = 0: give 1 to 32 registers"), "{message}");
    let message = error("machine = 'zen4'", "[[kernels]]\ntables = { kind = 'asap', levels = 0 }");
    assert!(message.contains("tables.levels"), "{message}");
}
