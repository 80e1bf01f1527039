// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory that was saved and read back gives the same results to the last bit as the one that it
//! was saved of.

use std::ops::ControlFlow;
use std::path::Path;

use nestwalk_machine::{Configuration, MachineError};

/// `manager` in guest and host, with `guest` as the way in which the guest's memory begins.
fn scenario(manager: &str, guest: &str) -> String {
    format!(
        "schema = 1\nname = 'saved'\nmachine = 'broadwell-asap'\n[workload.generator]\nkind = 'gups'\n\
         footprint = '64 MiB'\nwarm_accesses = 20000\nmeasured_accesses = 50000\n\
         [[kernels]]\nmanager = {manager}\n[[kernels]]\nmemory = '256 MiB'\ncpus = 2\nmanager = {manager}\n{guest}\n"
    )
}

/// The result without what it was made from.
fn result(text: &str, folder: &Path) -> Result<String, MachineError> {
    let done =
        nestwalk_machine::run(text, &folder.join("x.toml"), Path::new("/nowhere"), &mut |_| ControlFlow::Continue(()))?;
    let mut json = serde_json::to_value(&done).unwrap();
    assert!(json.as_object_mut().unwrap().remove("configuration").is_some());
    Ok(json.to_string())
}

fn save(text: &str, folder: &Path, name: &str) {
    let configuration = Configuration::parse(text, &folder.join("x.toml")).unwrap();
    let (about, packed) = nestwalk_machine::saved::save(&configuration, Path::new("/nowhere"), 1).unwrap();
    assert_eq!((about.frames, about.cpus, about.bytes), (1 << 16, 2, packed.len() as u64));
    std::fs::write(folder.join(name), packed).unwrap();
}

#[test]
fn results_are_the_same_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    let starts = [
        "start = { kind = 'fragmented', blocks_permille = 900, frames_per_block = 3, unmovable_permille = 300 }",
        "start = { kind = 'aged', used_permille = 700, kept_permille = 200 }",
    ];
    for manager in ["{ kind = 'linux4k' }", "{ kind = 'thp', defrag = 'always' }", "{ kind = 'quicksilver' }"] {
        let fresh = result(&scenario(manager, ""), folder.path()).unwrap();
        for start in starts {
            let text = scenario(manager, start);
            save(&text, folder.path(), "memory.nwm");
            let made = result(&text, folder.path()).unwrap();
            let read = result(&scenario(manager, "saved = 'memory.nwm'"), folder.path()).unwrap();
            assert_eq!(read, made, "{manager}, {start}");
            assert_ne!(made, fresh, "{manager}, {start}: as on fresh memory");
        }
    }
}

#[test]
fn what_the_fragmenting_process_holds_is_page_cache_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let manager = "{ kind = 'thp', defrag = 'never' }";
    let start = "start = { kind = 'frag', percent = 100, need = '64 MiB', wait_ms = 0 }";
    save(&scenario(manager, start), folder.path(), "frag.nwm");
    let read = result(&scenario(manager, "saved = 'frag.nwm'"), folder.path()).unwrap();
    let read: serde_json::Value = serde_json::from_str(&read).unwrap();
    let guest = &read["contiguity"][1]["started"]["blocks"];
    assert_eq!((guest[9].as_u64(), guest[10].as_u64()), (Some(0), Some(0)), "no free 2 MiB block");
    assert_eq!(read["row"]["huge_on_huge_share"], 0.0);
    assert_eq!(read["row"]["small_on_huge_share"], 1.0);
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory.nwm");
    let refused = |text: &str| result(text, folder.path()).unwrap_err().to_string();
    let text = scenario("{ kind = 'linux4k' }", "saved = 'memory.nwm'");
    assert!(refused(&text).starts_with(path.to_str().unwrap()), "it is not there");
    save(&scenario("{ kind = 'linux4k' }", ""), folder.path(), "memory.nwm");
    let whole = std::fs::read(&path).unwrap();
    for (damage, what) in [
        (whole[..whole.len() / 2].to_vec(), "damaged"),
        ([&whole[..], &zstd::encode_all(&b"more"[..], 3).unwrap()].concat(), "another length"),
        (zstd::encode_all(&b"something else"[..], 3).unwrap(), "no saved memory"),
        (b"plain".to_vec(), "no saved memory"),
    ] {
        std::fs::write(&path, damage).unwrap();
        let said = refused(&text);
        assert!(said.contains(what) && said.contains("memory.nwm") && said.lines().count() == 1, "{said}");
    }
    std::fs::write(&path, &whole).unwrap();
    let other = refused(&text.replace("256 MiB", "320 MiB"));
    assert!(other.contains("81920") && other.contains("same memory"), "{other}");
    let both = refused(&scenario(
        "{ kind = 'linux4k' }",
        "saved = 'memory.nwm'\nstart = { kind = 'aged', used_permille = 1, kept_permille = 1 }",
    ));
    assert!(both.contains("give one of the two"), "{both}");
}
